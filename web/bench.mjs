// Measures the package beside wllama, in the same page and run: prompt and generation speed, load times, and the frames of
// the page while tokens arrive. `make bench-web` runs it.
//
//   node web/bench.mjs --model MODEL.gguf --wllama DIRECTORY [--oxidize PROGRAM] [--rounds 3] [--threads 1,2]
import { execFileSync } from "node:child_process";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { launchChromium } from "./tests/launch.mjs";
import { startServer } from "./server.mjs";

const args = process.argv.slice(2);
const option = (name, fallback) => (args.includes(`--${name}`) ? args[args.indexOf(`--${name}`) + 1] : fallback);
const rounds = Number(option("rounds", 3));
const threads = option("threads", availableParallelism() > 1 ? "1,2" : "1").split(",").map(Number);
const [model, wllama, native] = [option("model"), option("wllama"), option("oxidize")];
if (!model) {
  console.error("usage: node web/bench.mjs --model MODEL.gguf [--wllama DIRECTORY] [--oxidize PROGRAM] [--rounds 3] [--threads 1,2]");
  process.exit(2);
}

const WORDS = 195;
const GENERATED = 64;
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const server = await startServer({
  roots: { "/package/": here("package/dist"), "/model.gguf": model, "/": here("tests"), ...(wllama && { "/wllama/": wllama }) },
});
const browser = await launchChromium();
const page = await browser.newPage();
await page.goto(`${server.address}/page.html`);
await page.waitForFunction(() => window.oxidize);

// Another prompt each time, so that no engine finds it in a cache. One tokenizer counts for all.
const prompts = await page.evaluate(
  async ([words, n]) => {
    const list = ["river", "stone", "cloud", "tree", "lamp", "road", "glass", "paper"];
    const word = () => list[Math.floor(Math.random() * list.length)];
    const model = await oxidize.Oxidize.load("/model.gguf", { threads: 1 });
    const prompts = [];
    for (let i = 0; i < n; i += 1) {
      const text = Array.from({ length: words }, word).join(" ");
      prompts.push({ text, count: (await model.tokenize(text)).length });
    }
    model.unload();
    return prompts;
  },
  [WORDS, 2 * (rounds * threads.length + 1)],
);

/** Speeds of one engine, timed from the page. */
function run(engine, threads) {
  return page.evaluate(
    async ([engine, threads, { text: prompt, count }, generated]) => {
      const engines = {
        async oxidize(url) {
          const model = await oxidize.Oxidize.load(url, { threads, contextSize: 1024 });
          return {
            async *stream(prompt, n) {
              for await (const part of model.complete(prompt, { temperature: 0, maxTokens: n, ignoreEos: true })) {
                if (part.token !== undefined) yield part;
              }
            },
            end: () => model.unload(),
          };
        },
        async wllama(url) {
          const { Wllama, LoggerWithoutDebug } = await import("/wllama/index.js");
          const wllama = new Wllama({ default: "/wllama/wasm/wllama.wasm" }, { logger: LoggerWithoutDebug });
          await wllama.loadModelFromUrl(url, { n_threads: threads, n_ctx: 1024, n_gpu_layers: 0 });
          return {
            stream: (prompt, n) =>
              wllama
                .createCompletion({ prompt, max_tokens: n, temperature: 0, stream: true, ignore_eos: true })
                .then((stream) => stream),
            end: () => wllama.exit(),
          };
        },
      };
      const url = new URL("/model.gguf", location).href;
      const begin = performance.now();
      const loaded = await engines[engine](url);
      const loadTime = performance.now() - begin;
      const measure = async (prompt, n) => {
        const times = [performance.now()];
        for await (const _ of await loaded.stream(prompt, n)) times.push(performance.now());
        return times;
      };
      const first = await measure("Hello", 2);
      const frames = [];
      let isRunning = true;
      let last = performance.now();
      const frame = (now) => {
        frames.push(now - last);
        last = now;
        if (isRunning) requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
      const times = await measure(prompt, generated);
      isRunning = false;
      await loaded.end();
      frames.sort((a, b) => a - b);
      return {
        prompt: (1000 * count) / (times[1] - times[0]),
        generation: (1000 * (times.length - 2)) / (times.at(-1) - times[1]),
        loadTime,
        firstToken: loadTime + first[1] - first[0],
        frames: frames[Math.floor(frames.length * 0.99)],
        tokens: [count, times.length - 1],
      };
    },
    [engine, threads, prompts.pop(), GENERATED],
  );
}

const results = [];
const note = (engine, threads, result) => {
  results.push({ engine, threads, ...result });
  const { prompt, generation, loadTime, firstToken, frames } = result;
  const more = loadTime === undefined
    ? ""
    : `, loaded in ${loadTime.toFixed(0)} ms, first token ${firstToken.toFixed(0)} ms after the call of load, 99% of frames ` +
      `within ${frames.toFixed(1)} ms`;
  console.log(`${engine}, ${threads} thread(s): prompt ${prompt.toFixed(1)}, generation ${generation.toFixed(1)} tokens/s${more}`);
};

// The first load of each downloads the model.
for (const engine of wllama ? ["oxidize", "wllama"] : ["oxidize"]) await run(engine, 1);
for (let round = 0; round < rounds; round += 1) {
  for (const n of threads) {
    for (const engine of wllama ? ["oxidize", "wllama"] : ["oxidize"]) note(engine, n, await run(engine, n));
    if (native) note("native", n, runNative(n));
  }
}

function runNative(threads) {
  const flags = ["bench", "-m", model, "-p", String(WORDS), "-n", String(GENERATED), "-r", "1", "-t", String(threads), "--json"];
  // Every machine of today has AVX2; the shares would be smaller and say less with AVX-512.
  const env = { ...process.env, OXIDIZE_ISA: "avx2" };
  const tests = JSON.parse(execFileSync(native, flags, { encoding: "utf8", env, stdio: ["ignore", "pipe", "ignore"] }));
  const speed = (key) => tests.find((test) => test[key] > 0).tokens_per_second;
  return { prompt: speed("n_prompt"), generation: speed("n_gen") };
}

const best = (engine, n, key) =>
  Math.max(...results.filter((result) => result.engine === engine && result.threads === n).map((result) => result[key]));
for (const n of threads) {
  for (const other of ["wllama", "native"]) {
    if (!results.some(({ engine }) => engine === other)) continue;
    const [prompt, generation] = ["prompt", "generation"].map((key) => best("oxidize", n, key) / best(other, n, key));
    console.log(`best of ${rounds}, ${n} thread(s), relative to ${other}: prompt ${prompt.toFixed(2)}, generation ${generation.toFixed(2)}`);
  }
}
await browser.close();
await server.close();
