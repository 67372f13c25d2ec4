// The packed package in a fresh directory: Vite's dev server, its production build, and a plain page.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build, createServer } from "vite";
import { startServer } from "../server.mjs";
import { launchChromium } from "./launch.mjs";
import { expected } from "./setup.mjs";

const { tiny, files } = expected;
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
let directory;
let browser;

before(async () => {
  directory = mkdtempSync(join(tmpdir(), "oxidize-bundlers-"));
  // As `npm install oxidize-0.1.0.tgz` does.
  execFileSync("npm", ["pack", "--silent", "--pack-destination", directory], { cwd: here("../package"), stdio: "pipe" });
  const [archive] = readdirSync(directory);
  writeFileSync(join(directory, "package.json"), JSON.stringify({ private: true, type: "module" }));
  const flags = ["--silent", "--offline", "--no-audit", "--no-fund", "--ignore-scripts"];
  execFileSync("npm", ["install", ...flags, join(directory, archive)], { cwd: directory, stdio: "pipe" });
  cpSync(files["tiny.gguf"], join(directory, "public/tiny.gguf"), { recursive: true });
  writeFileSync(
    join(directory, "index.html"),
    `<!doctype html><title>Vite</title><link rel="icon" href="data:,"><script type="module" src="/main.js"></script>`,
  );
  writeFileSync(
    join(directory, "main.js"),
    `import { Oxidize } from "oxidize";
    const model = await Oxidize.load("/tiny.gguf", { cache: false, threads: crossOriginIsolated ? 2 : 1 });
    const options = { temperature: 0, maxTokens: ${tiny.tokens.length}, ignoreEos: true };
    const tokens = await model.complete(${JSON.stringify(tiny.prompt)}, options).tokens();
    window.result = { tokens, build: (await model.info()).build };`,
  );
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  if (directory) rmSync(directory, { recursive: true, force: true });
});

async function check(address, build) {
  const page = await browser.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  await page.goto(address);
  await page
    .waitForFunction(() => window.result, null, { timeout: 60_000 })
    .catch((error) => assert.fail(`${error.message}\n${errors.join("\n")}`));
  const result = await page.evaluate(() => window.result);
  await page.close();
  assert.deepEqual(result, { tokens: tiny.tokens, build });
}

const headers = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

for (const isolated of [false, true]) {
  const mode = isolated ? "with threads" : "with one thread";
  const wanted = isolated ? "threads" : "simd";

  test(`runs in Vite's dev server ${mode}`, async () => {
    const server = await createServer({
      root: directory,
      configFile: false,
      logLevel: "error",
      server: { port: 0, host: "127.0.0.1", headers: isolated ? headers : {} },
      // The address of a worker in a package is lost when the package is bundled for the dev server.
      optimizeDeps: { exclude: ["oxidize"] },
    });
    await server.listen();
    await check(`http://127.0.0.1:${server.httpServer.address().port}/`, wanted);
    await server.close();
  });

  test(`runs in Vite's production build ${mode}`, async () => {
    await build({ root: directory, configFile: false, logLevel: "error" });
    const server = await startServer({ roots: { "/": join(directory, "dist") }, isolated });
    await check(`${server.address}/`, wanted);
    await server.close();
  });
}

test("runs from a plain page", async () => {
  const plain = join(directory, "plain");
  mkdirSync(plain);
  symlinkSync(join(directory, "node_modules/oxidize/dist"), join(plain, "oxidize"));
  cpSync(files["tiny.gguf"], join(plain, "tiny.gguf"));
  cpSync(join(directory, "main.js"), join(plain, "main.js"));
  writeFileSync(
    join(plain, "index.html"),
    `<!doctype html><title>Plain</title><link rel="icon" href="data:,">
    <script type="importmap">{ "imports": { "oxidize": "/oxidize/index.js" } }</script>
    <script type="module" src="/main.js"></script>`,
  );
  const server = await startServer({ roots: { "/": plain }, isolated: false });
  await check(`${server.address}/`, "simd");
  await server.close();
});
