// The package in Node, and in Deno where it is on PATH.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { openAsBlob } from "node:fs";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Oxidize } from "../package/dist/node/index.js";
import { expected, startTestServer } from "./setup.mjs";

const { tiny, smol, files } = expected;
const options = { temperature: 0, maxTokens: tiny.tokens.length, ignoreEos: true };

test("answers as a native engine, from a path, a file: URL, a Blob and a web address", async () => {
  const server = await startTestServer({ isolated: false });
  server.faults["/models/tiny.gguf"] = (number) => (number === 0 ? { cutAfter: 30_000 } : {});
  const path = files["tiny.gguf"];
  const sources = [path, pathToFileURL(path), await openAsBlob(path), `${server.address}/models/tiny.gguf`];
  for (const source of sources) {
    const model = await Oxidize.load(source, { threads: 1 });
    assert.deepEqual(await model.complete(tiny.prompt, options).tokens(), tiny.tokens);
    assert.equal((await model.info()).cached, false);
    model.unload();
  }
  await server.close();
});

test("computes with threads", async () => {
  const model = await Oxidize.load(files["tiny.gguf"], { threads: 2 });
  const info = await model.info();
  assert.deepEqual([info.build, info.threads], ["threads", 2]);
  assert.deepEqual(await model.complete(tiny.prompt, options).tokens(), tiny.tokens);
  model.unload();
});

test("answers with a larger model as a native engine", { skip: !smol && "no SmolLM2" }, async () => {
  const model = await Oxidize.load(files["smol.gguf"], { threads: 1 });
  let text = "";
  for await (const part of model.chat(smol.messages, { temperature: 0, maxTokens: smol.tokens.length })) text += part.text;
  assert.equal(text, smol.text);
  model.unload();
});

test("refuses what is not there", async () => {
  const code = (source) => Oxidize.load(source).then(String, ({ code }) => code);
  assert.equal(await code("/no/such/model.gguf"), "invalid-argument");
  assert.equal(await code(fileURLToPath(import.meta.url)), "not-a-model");
});

const isDenoThere = !spawnSync("deno", ["--version"]).error;
test("runs in Deno", { skip: !isDenoThere && "deno is not on PATH" }, () => {
  const script = `
    import { Oxidize } from ${JSON.stringify(new URL("../package/dist/node/index.js", import.meta.url).href)};
    const model = await Oxidize.load(${JSON.stringify(files["tiny.gguf"])}, { threads: 1 });
    console.log(JSON.stringify(await model.complete(${JSON.stringify(tiny.prompt)}, ${JSON.stringify(options)}).tokens()));
    model.unload();
    Deno.exit();`;
  const found = spawnSync("deno", ["run", "--allow-all", "--no-config", "-"], { input: script, encoding: "utf8" });
  assert.equal(found.status, 0, found.stderr);
  assert.deepEqual(JSON.parse(found.stdout), tiny.tokens);
});
