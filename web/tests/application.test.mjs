// The demo application, as it is built for a static host.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { startServer } from "../server.mjs";
import { launchChromium } from "./launch.mjs";
import { expected } from "./setup.mjs";

const { tiny, smol, files } = expected;
const app = fileURLToPath(new URL("../app", import.meta.url));
const name = smol ? "smol.gguf" : "tiny.gguf";
let directory;
let browser;

before(async () => {
  directory = mkdtempSync(join(tmpdir(), "oxidize-application-"));
  await build({ root: app, logLevel: "error", build: { outDir: join(directory, "site"), emptyOutDir: true } });
  mkdirSync(join(directory, "site/models"));
  symlinkSync(files[name], join(directory, "site/models", name));
  const { bytes, sha256 } = smol ?? tiny;
  const models = [{ name: "The model", url: `models/${name}`, bytes, sha256, hint: "For tests" }];
  writeFileSync(join(directory, "site/models.json"), JSON.stringify(models));
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  if (directory) rmSync(directory, { recursive: true, force: true });
});

/** A picture of the page, if a directory for pictures is given. */
async function picture(page, name) {
  const to = process.env.OXIDIZE_WEB_PICTURES;
  if (to) await page.screenshot({ path: join(to, `${name}.png`) });
}

for (const [device, viewport, colorScheme] of [
  ["desktop", { width: 1100, height: 760 }, "light"],
  ["phone", { width: 390, height: 780 }, "dark"],
]) {
  test(`downloads a model, pauses, chats, stops, and works offline on a ${device}`, async () => {
    let slow = true;
    let online = true;
    const server = await startServer({
      roots: { "/": join(directory, "site") },
      isolated: false,
      intercept(url, _request, response, _headers, how) {
        if (!online) {
          response.destroy();
          return true;
        }
        if (url.pathname.endsWith(".gguf") && slow) how.delay = name === "smol.gguf" ? 5 : 400;
        return false;
      },
    });
    const context = await browser.newContext({ viewport, colorScheme });
    const page = await context.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    await page.goto(server.address);
    // The service worker takes over, and the page is loaded again for its headers.
    await page.waitForFunction(() => crossOriginIsolated, null, { timeout: 30_000 });
    await page.getByRole("button", { name: "Download" }).waitFor();
    await picture(page, `${device}-picker`);

    await page.getByRole("button", { name: "Download" }).click();
    await page.waitForFunction(() => document.getElementById("progress").value > 0);
    await picture(page, `${device}-download`);
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByText("Paused").waitFor();
    slow = false;
    await page.getByRole("button", { name: "Resume" }).click();
    await page.locator("#input").waitFor();
    assert.match(await page.locator("#status").textContent(), /threads · .* of memory · .* works offline/);

    const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert.equal(isWide, false, "the page scrolls sideways");
    await page.locator("#input").fill("What is the capital of France? Answer with a list of three facts.");
    await page.getByRole("button", { name: "Send" }).click();
    await page.waitForFunction(() => document.querySelector(".assistant .body")?.textContent.length > 10);
    await page.getByRole("button", { name: "Stop" }).click({ timeout: 5000 }).catch(() => {});
    await page.getByRole("button", { name: "Send" }).waitFor();
    assert.match(await page.locator(".assistant .notes").last().textContent(), /tokens/);
    await picture(page, `${device}-chat`);
    await page.getByRole("button", { name: "Settings" }).click();
    await picture(page, `${device}-settings`);
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Longest answer").fill("8");
    await page.getByRole("button", { name: "Save" }).click();

    online = false;
    await page.reload();
    await page.getByRole("button", { name: "Open", exact: true }).click();
    await page.locator("#input").fill("Hello");
    await page.getByRole("button", { name: "Send" }).click();
    await page.waitForFunction(() => /first token/.test(document.querySelector(".assistant .notes")?.textContent ?? ""));
    assert.match(await page.locator(".assistant .notes").textContent(), /^[1-8] tokens/);
    assert.deepEqual(errors, []);
    await context.close();
    await server.close();
  });
}
