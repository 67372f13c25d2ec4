// The main path in Firefox.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import puppeteer from "puppeteer-core";
import { expected, startTestServer } from "./setup.mjs";

const { tiny, smol } = expected;
let browser;
const servers = [];

before(async () => {
  browser = await puppeteer.launch({
    browser: "firefox",
    executablePath: process.env.OXIDIZE_FIREFOX,
    headless: true,
    extraPrefsFirefox: { "network.captive-portal-service.enabled": false, "network.connectivity-service.enabled": false },
  });
});

after(async () => {
  await browser?.close();
  for (const server of servers) await server.close();
});

async function openPage(isolated) {
  const server = await startTestServer({ isolated });
  servers.push(server);
  const page = await browser.newPage();
  await page.goto(`${server.address}/page.html`);
  await page.waitForFunction(() => window.oxidize);
  return { page, server };
}

for (const isolated of [false, true]) {
  test(`downloads, answers and reloads ${isolated ? "with threads" : "with one thread"}`, async () => {
    const { page, server } = await openPage(isolated);
    const [name, want, input] =
      smol && !isolated ? ["smol", smol, smol.messages] : ["tiny", tiny, tiny.prompt];
    const run = () =>
      page.evaluate(
        async (url, input, n, chat, threads) => {
          const model = await oxidize.Oxidize.load(url, { threads });
          const options = { temperature: 0, maxTokens: n, ignoreEos: !chat };
          const tokens = await (chat ? model.chat(input, options) : model.complete(input, options)).tokens();
          const info = await model.info();
          model.unload();
          return { tokens, info };
        },
        `/models/${name}.gguf`,
        input,
        want.tokens.length,
        Array.isArray(input),
        isolated ? 2 : 1,
      );
    server.faults[`/models/${name}.gguf`] = (number) => (number === 0 ? { cutAfter: 50_000 } : {});
    const first = await run();
    assert.deepEqual(first.tokens, want.tokens);
    assert.equal(first.info.build, isolated ? "threads" : "simd");
    assert.equal(first.info.cached, true, first.info.cacheReason);
    assert.deepEqual(
      server.requests.map(({ range }) => range),
      [null, "bytes=50000-"],
    );
    await page.reload();
    await page.waitForFunction(() => window.oxidize);
    const second = await run();
    assert.deepEqual(second.tokens, want.tokens);
    assert.equal(server.requests.length, 2);
  });
}

test("stops an answer", async () => {
  const { page } = await openPage(false);
  const found = await page.evaluate(async () => {
    const model = await oxidize.Oxidize.load("/models/tiny.gguf", { threads: 1 });
    const answer = model.complete("a", { maxTokens: 4000, ignoreEos: true });
    for await (const _ of answer) break;
    const { length } = await model.complete("b", { maxTokens: 5, ignoreEos: true }).tokens();
    return { length, end: answer.completion };
  });
  assert.deepEqual(found, { length: 5, end: undefined });
});
