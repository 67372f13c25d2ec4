// The package in Chromium, against the answers of a native engine.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launchChromium, launchProfile } from "./launch.mjs";
import { expected, startTestServer } from "./setup.mjs";

const { tiny, smol } = expected;
let browser;
let plain;
let isolated;

before(async () => {
  plain = await startTestServer({ isolated: false });
  isolated = await startTestServer({ isolated: true });
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  await plain?.close();
  await isolated?.close();
});

/** Runs `work` with a fresh profile: a page, its server and a function that opens another page of the profile. */
async function withPage(work, server = plain) {
  const context = await browser.newContext();
  const open = async () => {
    const page = await context.newPage();
    page.on("pageerror", (error) => console.error("page:", error));
    await page.goto(`${server.address}/page.html`);
    await page.waitForFunction(() => window.oxidize);
    return page;
  };
  server.requests.length = 0;
  for (const name of Object.keys(server.faults)) delete server.faults[name];
  try {
    await work(await open(), { context, open, server });
  } finally {
    await context.close();
  }
}

/** Loads a model into `window.model` and returns its info, or the error. */
function load(page, source, options = {}) {
  return page.evaluate(
    async ([source, options]) => {
      window.progress = [];
      try {
        window.model?.unload();
        window.model = await oxidize.Oxidize.load(source, {
          onProgress: (progress) => window.progress.push(progress),
          ...options,
        });
        return { info: await window.model.info(), progress: window.progress };
      } catch (error) {
        const { name, code, message, advice } = error;
        return { error: { name, code, message, advice }, progress: window.progress };
      }
    },
    [source, options],
  );
}

/** Greedy tokens and text of a continuation or a chat. */
function answer(page, input, options) {
  return page.evaluate(
    async ([input, options]) => {
      const answer = Array.isArray(input) ? model.chat(input, options) : model.complete(input, options);
      return { text: await answer.text(), tokens: await answer.tokens(), end: await answer.done() };
    },
    [input, { temperature: 0, ...options }],
  );
}

const list = (page) => page.evaluate(() => oxidize.Oxidize.models.list());
const complete = (page) => answer(page, tiny.prompt, { maxTokens: tiny.tokens.length, ignoreEos: true });

test("downloads, answers as a native engine, and is there after a reload", { skip: !smol && "no SmolLM2" }, () =>
  withPage(async (page, { server }) => {
    const { info, progress, error } = await load(page, "/models/smol.gguf");
    assert.equal(error, undefined);
    assert.equal(info.build, "simd");
    assert.equal(info.threads, 1);
    assert.match(info.reasons.join(), /cross-origin isolated|one core/);
    assert.equal(info.cached, true);
    assert.equal(info.architecture, "llama");
    const downloading = progress.filter(({ phase }) => phase === "downloading");
    assert.ok(downloading.length > 2 && downloading.every(({ total }) => total === smol.bytes));
    assert.equal(downloading.at(-1).loaded, smol.bytes);
    const first = await answer(page, smol.messages, { maxTokens: smol.tokens.length });
    assert.equal(first.text, smol.text);
    assert.deepEqual(first.tokens, smol.tokens);
    assert.ok(first.end.timings.generation > 0 && first.end.promptTokens > 0);
    assert.deepEqual(
      (await list(page)).map(({ complete, bytes, sha256 }) => ({ complete, bytes, sha256 })),
      [{ complete: true, bytes: smol.bytes, sha256: smol.sha256 }],
    );

    // Offline: nothing is asked of the server.
    server.faults["/models/smol.gguf"] = () => ({ status: 503 });
    const before = server.requests.length;
    await page.reload();
    await page.waitForFunction(() => window.oxidize);
    const again = await load(page, { cached: `${server.address}/models/smol.gguf` });
    assert.equal(again.error, undefined);
    assert.equal(again.info.cached, true);
    assert.ok(again.progress.every(({ phase }) => phase !== "downloading"));
    assert.equal(server.requests.length, before);
    assert.equal((await answer(page, smol.messages, { maxTokens: smol.tokens.length })).text, smol.text);
  }));

test("computes with threads where the page is isolated", () =>
  withPage(async (page) => {
    const { info, error } = await load(page, "/models/tiny.gguf", { threads: 3 });
    assert.equal(error, undefined);
    assert.deepEqual([info.build, info.threads], ["threads", 3]);
    assert.match(info.reasons.join(), /isolated/);
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);
    if (smol) {
      assert.equal((await load(page, "/models/smol.gguf", { threads: 2, cache: false })).error, undefined);
      const { text } = await answer(page, smol.messages, { maxTokens: smol.tokens.length });
      assert.equal(text, smol.text);
    }
  }, isolated));

test("an isolated page can ask for one thread", () =>
  withPage(async (page) => {
    const { info } = await load(page, "/models/tiny.gguf", { threads: 1 });
    assert.deepEqual([info.build, info.threads], ["simd", 1]);
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);
  }, isolated));

test("tokenizes, detokenizes and renders as a native engine", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const found = await page.evaluate(
      async ({ text, messages }) => ({
        tokens: Array.from(await model.tokenize(text)),
        text: await model.detokenize(await model.tokenize(text, { addSpecial: false })),
        prompt: await model.applyTemplate(messages),
      }),
      tiny,
    );
    assert.deepEqual(found.tokens, tiny.textTokens);
    assert.equal(found.text, tiny.text);
    assert.deepEqual(found.prompt.tokens, tiny.rendered);
    const outside = await page.evaluate(() => model.detokenize([1e6]).catch(({ code }) => code));
    assert.equal(outside, "invalid-argument");
  }));

test("embeds as a native engine", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const vectors = await page.evaluate(async (texts) => {
      const vectors = await model.embed(texts);
      return [...vectors, await model.embed(texts[0])].map((vector) => Array.from(vector));
    }, tiny.embedded);
    assert.equal(vectors.length, tiny.embeddings.length + 1);
    const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
    tiny.embeddings.forEach((want, i) => {
      const cosine = dot(want, vectors[i]) / Math.sqrt(dot(want, want));
      assert.ok(Math.abs(cosine - 1) < 1e-4, `cosine ${cosine}`);
    });
    assert.ok(Math.abs(dot(vectors.at(-1), vectors[0]) - 1) < 1e-4);
  }));

test("answers several requests at once as alone", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const found = await page.evaluate(
      async ({ prompts, n }) => {
        const options = { temperature: 0, maxTokens: n, ignoreEos: true };
        const alone = [];
        for (const prompt of prompts) alone.push(await model.complete(prompt, options).tokens());
        const together = await Promise.all(prompts.map((prompt) => model.complete(prompt, options).tokens()));
        return { alone, together };
      },
      { prompts: ["a", "the second prompt", "b c d", "another one", "and a fifth"], n: 12 },
    );
    assert.deepEqual(found.together, found.alone);
    assert.ok(found.alone.every(({ length }) => length === 12));
  }));

test("answers in the form of a schema, a grammar, a choice or a regular expression", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const schema = {
      type: "object",
      properties: { kind: { enum: ["cat", "dog"] }, age: { type: "integer", minimum: 0, maximum: 30 } },
      required: ["kind", "age"],
      additionalProperties: false,
    };
    const found = await page.evaluate(async (schema) => {
      const ask = (options) => model.complete("Answer:", { maxTokens: 100, seed: 7, ...options });
      return {
        schema: await ask({ schema }).json(),
        choice: await ask({ choice: ["yes", "no"] }).text(),
        regex: await ask({ regex: "[0-9]{3}-[a-f]" }).text(),
        grammar: await ask({ grammar: 'root ::= "x" [0-9] "y"' }).text(),
        both: await ask({ choice: ["a"], regex: "b" }).text().catch(({ code, message }) => `${code}: ${message}`),
        broken: await ask({ grammar: "root ::= (" }).text().catch(({ code }) => code),
      };
    }, schema);
    assert.ok(["cat", "dog"].includes(found.schema.kind) && Number.isInteger(found.schema.age));
    assert.match(found.choice, /^(yes|no)$/);
    assert.match(found.regex, /^[0-9]{3}-[a-f]$/);
    assert.match(found.grammar, /^x[0-9]y$/);
    assert.match(found.both, /^invalid-argument: .*exclude each other/);
    assert.equal(found.broken, "invalid-argument");
  }));

test("samples by seed, and reports log probabilities and the progress of the prompt", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const found = await page.evaluate(async () => {
      const sample = (seed) => model.complete("Once", { seed, temperature: 1, maxTokens: 16, ignoreEos: true }).tokens();
      const prompts = [];
      const parts = [];
      const options = {
        temperature: 0,
        maxTokens: 3,
        logprobs: 2,
        ignoreEos: true,
        onPrompt: (progress) => prompts.push(progress),
      };
      for await (const part of model.complete("x ".repeat(100), options)) parts.push(part);
      return { a: await sample(1), b: await sample(1), c: await sample(2), parts, prompts };
    });
    assert.deepEqual(found.a, found.b);
    assert.notDeepEqual(found.a, found.c);
    const tokens = found.parts.filter(({ token }) => token !== undefined);
    assert.equal(tokens.length, 3);
    assert.ok(tokens.every(({ logprob, top }) => logprob <= 0 && top.length === 2));
    assert.equal(found.prompts.at(-1).processed, found.prompts.at(-1).total);
  }));

test("loads a split model", () =>
  withPage(async (page) => {
    const { info, error } = await load(page, ["/models/first.gguf", "/models/second.gguf"]);
    assert.equal(error, undefined);
    assert.equal(info.cached, true);
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);
    assert.equal((await list(page)).length, 2);
    for (const wrong of [["/models/second.gguf", "/models/first.gguf"], ["/models/first.gguf", "/models/tiny.gguf"]]) {
      assert.equal((await load(page, wrong)).error.code, "broken-model");
    }
  }));

test("applies LoRA adapters, each request with its scales", () =>
  withPage(async (page) => {
    assert.notDeepEqual(expected.adapted, tiny.tokens);
    const adapters = [{ source: "/models/adapter.gguf" }];
    const { info, error } = await load(page, "/models/tiny.gguf", { adapters });
    assert.equal(error, undefined);
    assert.equal(info.adapters.length, 1);
    const [applied, off] = await Promise.all([
      complete(page),
      answer(page, tiny.prompt, { maxTokens: tiny.tokens.length, ignoreEos: true, adapters: [0] }),
    ]);
    assert.deepEqual(applied.tokens, expected.adapted);
    assert.deepEqual(off.tokens, tiny.tokens);
    const wrong = await load(page, "/models/tiny.gguf", { adapters: [{ source: "/models/tiny.gguf" }] });
    assert.equal(wrong.error.code, "broken-model");
  }));

test("stops by signal, by leaving the loop, and goes on", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const found = await page.evaluate(async () => {
      const options = { temperature: 0, maxTokens: 4000, ignoreEos: true };
      const controller = new AbortController();
      const aborted = model.complete("a", { ...options, signal: controller.signal });
      let seen = 0;
      let error;
      try {
        for await (const _ of aborted) if ((seen += 1) === 3) controller.abort();
      } catch (caught) {
        error = caught;
      }
      for await (const _ of model.complete("b", options)) break;
      const already = await model.complete("c", { signal: AbortSignal.abort() }).text().catch(({ name }) => name);
      const next = await model.complete("d", { ...options, maxTokens: 5 }).tokens();
      return { seen, error: [error.name, error.code], already, next: next.length };
    });
    assert.ok(found.seen >= 3 && found.seen < 4000);
    assert.deepEqual(found.error, ["AbortError", "aborted"]);
    assert.equal(found.already, "AbortError");
    assert.equal(found.next, 5);
  }));

test("has the shape of OpenAI's client", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    const found = await page.evaluate(async (messages) => {
      const request = { model: "any", messages, max_tokens: 6, temperature: 0, logprobs: true, top_logprobs: 1 };
      const whole = await model.openai.chat.completions.create(request);
      const chunks = [];
      const options = { ...request, stream: true, stream_options: { include_usage: true } };
      for await (const chunk of await model.openai.chat.completions.create(options)) chunks.push(chunk);
      const { data } = await model.openai.embeddings.create({ input: ["a", "b"] });
      return { whole, chunks, dimensions: data.map(({ embedding }) => embedding.length) };
    }, tiny.messages);
    const [choice] = found.whole.choices;
    assert.equal(found.whole.object, "chat.completion");
    assert.equal(choice.finish_reason, "length");
    assert.equal(found.whole.usage.completion_tokens, 6);
    assert.equal(choice.logprobs.content.length, 6);
    const text = found.chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("");
    assert.equal(text, choice.message.content);
    assert.deepEqual(found.chunks.at(-1).usage, found.whole.usage);
    assert.equal(found.dimensions.length, 2);
  }));

test("loads a File, a stream and bytes", () =>
  withPage(async (page) => {
    const found = await page.evaluate(
      async ({ prompt, n }) => {
        const bytes = await (await fetch("/models/tiny.gguf")).arrayBuffer();
        const sources = {
          file: () => new File([bytes], "mine.gguf"),
          stream: async () => (await fetch("/models/tiny.gguf")).body,
          bytes: () => bytes,
        };
        const found = {};
        for (const [kind, source] of Object.entries(sources)) {
          const model = await oxidize.Oxidize.load(await source());
          const tokens = await model.complete(prompt, { temperature: 0, maxTokens: n, ignoreEos: true }).tokens();
          found[kind] = { tokens, cached: (await model.info()).cached };
          model.unload();
        }
        return found;
      },
      { prompt: tiny.prompt, n: tiny.tokens.length },
    );
    for (const { tokens, cached } of Object.values(found)) {
      assert.deepEqual(tokens, tiny.tokens);
      assert.equal(cached, false);
    }
    assert.deepEqual(await list(page), []);
  }));

test("resumes a broken connection by a range", () =>
  withPage(async (page, { server }) => {
    server.faults["/models/tiny.gguf"] = (number) => (number < 2 ? { cutAfter: 40_000 } : {});
    const { info, error } = await load(page, "/models/tiny.gguf");
    assert.equal(error, undefined);
    assert.equal(info.cached, true);
    assert.deepEqual(
      server.requests.map(({ range }) => range),
      [null, "bytes=40000-", "bytes=80000-"],
    );
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);
    assert.equal((await list(page))[0].sha256, tiny.sha256);
  }));

test("resumes the download of an earlier visit, and shows it until then", () =>
  withPage(async (page, { server, open }) => {
    server.faults["/models/tiny.gguf"] = (number) => (number < 4 ? { cutAfter: number === 0 ? 50_000 : 0 } : {});
    const { error } = await load(page, "/models/tiny.gguf");
    assert.equal(error.code, "network");
    assert.match(error.advice, /resumes/);
    const [part] = await list(page);
    assert.deepEqual([part.complete, part.bytes, part.total], [false, 50_000, tiny.bytes]);
    await page.close();
    const next = await open();
    const { info, progress } = await load(next, "/models/tiny.gguf");
    assert.equal(info.cached, true);
    assert.equal(server.requests.at(-1).range, "bytes=50000-");
    assert.ok(progress.some(({ resumed }) => resumed === 50_000));
    assert.deepEqual((await complete(next)).tokens, tiny.tokens);
  }));

test("starts over if the file has changed, or the part is damaged", () =>
  withPage(async (page, { server }) => {
    const cut = (etag) => (number) => (number < 4 ? { cutAfter: number === 0 ? 50_000 : 0, etag } : { etag: '"2"' });
    server.faults["/models/tiny.gguf"] = cut('"1"');
    assert.equal((await load(page, "/models/tiny.gguf")).error.code, "network");
    assert.equal((await load(page, "/models/tiny.gguf")).info.cached, true);
    assert.deepEqual(
      server.requests.slice(-2).map(({ range }) => range),
      ["bytes=50000-", null],
    );
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);

    server.faults["/models/tiny.gguf?b"] = cut('"2"');
    assert.equal((await load(page, "/models/tiny.gguf?b")).error.code, "network");
    await damage(page, (name) => name.endsWith(".part"));
    assert.equal((await load(page, "/models/tiny.gguf?b")).info.cached, true);
    assert.equal(server.requests.at(-1).range, null);
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);
  }));

test("downloads from a server without ranges or lengths", () =>
  withPage(async (page, { server }) => {
    server.faults["/models/tiny.gguf"] = (number) => ({ noRanges: true, cutAfter: number === 0 ? 60_000 : undefined });
    server.faults["/models/tiny.gguf?b"] = () => ({ noRanges: true, noLength: true });
    for (const url of ["/models/tiny.gguf", "/models/tiny.gguf?b"]) {
      assert.equal((await load(page, url)).error, undefined);
      assert.deepEqual((await complete(page)).tokens, tiny.tokens);
    }
    assert.equal((await load(page, "/models/tiny.gguf?b", { cache: false })).error, undefined);
    assert.deepEqual((await complete(page)).tokens, tiny.tokens);
  }));

test("a download that the page aborts is kept", () =>
  withPage(async (page, { server }) => {
    server.faults["/models/tiny.gguf"] = (number) => (number === 0 ? { delay: 300 } : {});
    const found = await page.evaluate(async () => {
      const controller = new AbortController();
      const onProgress = ({ loaded }) => loaded > 0 && controller.abort();
      return oxidize.Oxidize.load("/models/tiny.gguf", { signal: controller.signal, onProgress }).catch((e) => e.name);
    });
    assert.equal(found, "AbortError");
    const [part] = await list(page);
    assert.equal(part.complete, false);
    assert.equal((await load(page, "/models/tiny.gguf")).error, undefined);
    assert.equal(server.requests.at(-1).range, `bytes=${part.bytes}-`);
  }));

test("a tab that is closed while it writes leaves nothing corrupt", () =>
  withPage(async (page, { server, open }) => {
    server.faults["/models/tiny.gguf"] = (number) => (number === 0 ? { delay: 200 } : {});
    await page.evaluate(() => {
      window.started = new Promise((resolve) => {
        const onProgress = ({ loaded }) => loaded > 0 && resolve();
        oxidize.Oxidize.load("/models/tiny.gguf", { onProgress }).catch(() => {});
      });
      return window.started;
    });
    await page.close();
    const next = await open();
    assert.deepEqual((await list(next)).filter(({ complete }) => complete), []);
    assert.equal((await load(next, "/models/tiny.gguf")).info.cached, true);
    assert.deepEqual((await complete(next)).tokens, tiny.tokens);
  }));

test("two tabs share one download", () =>
  withPage(async (page, { server, open }) => {
    server.faults["/models/tiny.gguf"] = () => ({ delay: 100 });
    const other = await open();
    const [a, b] = await Promise.all([load(page, "/models/tiny.gguf"), load(other, "/models/tiny.gguf")]);
    assert.deepEqual([a.error, b.error], [undefined, undefined]);
    assert.equal(server.requests.length, 1);
    assert.ok([...a.progress, ...b.progress].some(({ phase }) => phase === "waiting"));
    for (const tab of [page, other]) assert.deepEqual((await complete(tab)).tokens, tiny.tokens);
  }));

test("refuses a wrong checksum and keeps nothing", () =>
  withPage(async (page) => {
    const wrong = await load(page, { url: "/models/tiny.gguf", sha256: "0".repeat(64) });
    assert.equal(wrong.error.code, "checksum");
    assert.match(wrong.error.message, new RegExp(tiny.sha256));
    assert.deepEqual(await list(page), []);
    const memory = await load(page, { url: "/models/tiny.gguf", sha256: "0".repeat(64) }, { cache: false });
    assert.equal(memory.error.code, "checksum");
    assert.equal((await load(page, { url: "/models/tiny.gguf", sha256: tiny.sha256 })).error, undefined);
  }));

test("detects a damaged cache", () =>
  withPage(async (page, { server }) => {
    assert.equal((await load(page, "/models/tiny.gguf")).error, undefined);
    await page.evaluate(() => model.unload());
    await damage(page, (name) => !name.includes("."));
    const { error } = await load(page, "/models/tiny.gguf");
    assert.equal(error.code, "corrupt-cache");
    assert.deepEqual(await list(page), []);
    const before = server.requests.length;
    assert.equal((await load(page, "/models/tiny.gguf")).error, undefined);
    assert.equal(server.requests.length, before + 1);
    await damage(page, (name) => name.endsWith(".json"));
    assert.deepEqual(await list(page), []);
    assert.equal((await load(page, { cached: "/models/tiny.gguf" })).error.code, "not-cached");
  }));

// Recent versions report the same quota to every site, so that the end of the storage comes in the middle of a file.
for (const [when, flags] of [
  ["as the browser says before", ["--disable-features=StaticStorageQuota,PredictableReportedQuota"]],
  ["as it turns out while writing", ["--enable-features=StaticStorageQuota,PredictableReportedQuota"]],
]) {
  test(`runs from memory if the storage is full, ${when}`, async () => {
    const directory = mkdtempSync(join(tmpdir(), "oxidize-profile-"));
    const context = await launchProfile(directory, flags);
    plain.requests.length = 0;
    try {
      const page = await context.newPage();
      await page.goto(`${plain.address}/page.html`);
      await page.waitForFunction(() => window.oxidize);
      const session = await context.newCDPSession(page);
      const quota = (quotaSize) =>
        session.send("Storage.overrideQuotaForOrigin", { origin: plain.address, quotaSize });
      for (const size of [0, 100_000]) {
        await quota(size);
        const { info, error } = await load(page, "/models/tiny.gguf");
        assert.equal(error, undefined);
        assert.equal(info.cached, false);
        assert.match(info.cacheReason, /room/);
        assert.deepEqual((await complete(page)).tokens, tiny.tokens);
        assert.deepEqual(await list(page), []);
      }
      await quota(1e9);
      assert.equal((await load(page, "/models/tiny.gguf")).info.cached, true);
    } finally {
      await context.close();
      rmSync(directory, { recursive: true, force: true });
    }
  });
}

test("runs from memory where there is no private file system", () =>
  withPage(async (page, { context, open }) => {
    await page.close();
    // As in private windows of some browsers; workers are told by a header script of their own realm.
    await context.route("**/package/store.js", async (route) => {
      const response = await route.fetch();
      const body = (await response.text()).replace("navigator.storage.getDirectory()", "Promise.reject(new Error())");
      await route.fulfill({ response, body });
    });
    const other = await open();
    const { info, error } = await load(other, "/models/tiny.gguf");
    assert.equal(error, undefined);
    assert.match(info.cacheReason, /private file system/);
    assert.deepEqual((await complete(other)).tokens, tiny.tokens);
    assert.deepEqual(await list(other), []);
  }));

test("refuses what is no model, with advice, and keeps nothing", () =>
  withPage(async (page, { server }) => {
    server.faults["/models/page.gguf"] = () => ({ body: "<!doctype html><title>Log in</title>" });
    server.faults["/models/missing.gguf"] = () => ({ status: 404 });
    const cases = [
      ["/models/page.gguf", "not-a-model"],
      ["/models/missing.gguf", "network"],
      ["/models/broken.gguf", "broken-model"],
      ["ftp://example.com/x.gguf", "invalid-argument"],
      [[], "invalid-argument"],
      [7, "invalid-argument"],
    ];
    for (const [source, code] of cases) {
      const { error } = await load(page, source);
      assert.equal(error?.code, code, `${source}: ${error?.message}`);
      if (code !== "invalid-argument") assert.ok(error.advice.length > 0);
    }
    // The broken file is what the server has.
    const kept = (await list(page)).filter(({ url }) => !url.endsWith("broken.gguf"));
    assert.deepEqual(kept, []);
    const found = await page.evaluate(async () => {
      const file = new File(["no model"], "notes.txt");
      return oxidize.Oxidize.load(file).catch(({ code, message }) => ({ code, message }));
    });
    assert.equal(found.code, "not-a-model");
    assert.match(found.message, /notes\.txt/);
  }));

test("refuses invalid settings", () =>
  withPage(async (page) => {
    const cases = [
      [{ backend: "webgpu" }, "not-supported"],
      [{ threads: 0 }, "invalid-argument"],
      [{ build: "threads" }, "not-supported"],
      [{ build: "fast" }, "invalid-argument"],
      [{ contextSize: 1e9 }, "context-length"],
      [{ kvType: "q2" }, "invalid-argument"],
      [{ parallel: 1000 }, "invalid-argument"],
    ];
    for (const [options, code] of cases) {
      const { error } = await load(page, "/models/tiny.gguf", options);
      assert.equal(error?.code, code, `${JSON.stringify(options)}: ${error?.message}`);
    }
    await load(page, "/models/tiny.gguf");
    const found = await page.evaluate(async () => {
      const code = (promise) => promise.then(String, ({ code }) => code);
      const long = "long ".repeat(20_000);
      return [
        await code(model.complete("x", { temperature: -1 }).text()),
        await code(model.complete("x", { temprature: 1 }).text()),
        await code(model.complete(long).text()),
        await code(model.chat([]).text()),
        await code(model.complete([1e9]).text()),
        (await model.complete("x", { maxTokens: 3, ignoreEos: true }).tokens()).length,
      ];
    });
    assert.deepEqual(found, [...Array(2).fill("invalid-argument"), "context-length", ...Array(2).fill("invalid-argument"), 3]);
  }));

test("unloading ends the worker and what runs on it", () =>
  withPage(async (page) => {
    await load(page, "/models/tiny.gguf");
    assert.equal(page.workers().length, 1);
    const found = await page.evaluate(async () => {
      const running = model.complete("a", { maxTokens: 4000, ignoreEos: true }).text();
      model.unload();
      const code = (promise) => promise.then(String, ({ code }) => code);
      return [await code(running), await code(model.tokenize("a")), await code(model.complete("b").text())];
    });
    assert.deepEqual(found, ["unloaded", "unloaded", "unloaded"]);
    await page.waitForTimeout(200);
    assert.equal(page.workers().length, 0);
  }));

test("manages models", () =>
  withPage(async (page, { server }) => {
    await load(page, "/models/tiny.gguf");
    await load(page, "/models/tiny.gguf?b");
    await page.evaluate(() => model.unload());
    assert.equal((await list(page)).length, 2);
    await page.evaluate(() => oxidize.Oxidize.models.delete("/models/tiny.gguf"));
    assert.deepEqual(
      (await list(page)).map(({ name, url }) => [name, url]),
      [["tiny.gguf", `${server.address}/models/tiny.gguf?b`]],
    );
    const storage = await page.evaluate(() => oxidize.Oxidize.models.storage());
    assert.ok(storage.quota > 0 && storage.usage > 0);
    assert.equal(typeof (await page.evaluate(() => oxidize.Oxidize.models.persist())), "boolean");
    await page.evaluate(() => oxidize.Oxidize.models.clear());
    assert.deepEqual(await list(page), []);
  }));

/** Overwrites bytes in the middle of the files whose names `choose` accepts. */
async function damage(page, choose) {
  await page.evaluate(async (choose) => {
    const matches = new Function(`return ${choose}`)();
    const root = await navigator.storage.getDirectory();
    const directory = await root.getDirectoryHandle("oxidize");
    for await (const [name, handle] of directory.entries()) {
      if (!matches(name)) continue;
      const { size } = await handle.getFile();
      const writable = await handle.createWritable({ keepExistingData: true });
      await writable.write({ type: "write", position: Math.floor(size / 2), data: new Uint8Array(8).fill(0xa5) });
      await writable.close();
    }
  }, choose.toString());
}
