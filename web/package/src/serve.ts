import type { ThreadStart } from "./compute.js";
import { AbortError, OxidizeError, toPlain } from "./errors.js";
import { placeFile } from "./files.js";
import type { WorkerHost } from "./host.js";
import type { AnswerEvent, Call, LoadRequest, Methods, Reply } from "./protocol.js";
import type { ModelInfo } from "./types.js";
import * as simd from "./wasm/simd/oxidize.js";
import * as threads from "./wasm/threads/oxidize.js";

/** Bytes of a page of WebAssembly's memory. */
const PAGE = 1 << 16;
/** Largest memory of each attempt, in pages: some phones refuse large shared memories. */
const MAX_PAGES = [1 << 16, 1 << 15, 1 << 14];
/** Pages that the module with threads needs at the start. */
const INITIAL_PAGES = 256;
/** Milliseconds between two reports of progress. */
const REPORT_INTERVAL = 50;

/** Serves the calls of a page. */
export function serve(host: WorkerHost): void {
  const engine = new Engine(host);
  const post = (reply: Reply, transfer?: Transferable[]) => host.port.postMessage(reply, transfer);
  host.port.onmessage = async ({ data }) => {
    const { call, method, args } = data as Call;
    try {
      const run = engine.methods[method] as (...args: unknown[]) => unknown;
      const result = await run(...args);
      post({ reply: call, result });
    } catch (error) {
      const fatal = engine.fatal(error);
      if (fatal) post({ fatal });
      else post({ reply: call, error: toPlain(error) });
    }
  };
}

class Engine {
  #host: WorkerHost;
  #glue: typeof simd = simd;
  #memory: WebAssembly.Memory | undefined;
  #maxPages = MAX_PAGES[0] as number;
  #model: simd.Host | undefined;
  #load = new AbortController();
  #isRunning = false;
  /** Turns of the event loop between two steps, so that calls of the page come in. */
  #turn = new MessageChannel();

  constructor(host: WorkerHost) {
    this.#host = host;
    this.#turn.port1.onmessage = () => this.#step();
    // Node would wait for the port.
    (this.#turn.port1 as { unref?: () => void }).unref?.();
  }

  readonly methods: { [M in keyof Methods]: (...args: Parameters<Methods[M]>) => unknown } = {
    load: (request) => this.#loadModel(request),
    abortLoad: () => this.#load.abort(),
    submit: (id, request) => {
      this.#loaded.submit(id, JSON.stringify(request));
      this.#run();
    },
    cancel: (id) => {
      this.#loaded.cancel(id);
      this.#run();
    },
    tokenize: (text, addSpecial, parseSpecial) => this.#loaded.tokenize(text, addSpecial, parseSpecial),
    detokenize: (tokens, renderSpecial) => this.#loaded.detokenize(Uint32Array.from(tokens), renderSpecial),
    applyTemplate: (request) => JSON.parse(this.#loaded.applyTemplate(JSON.stringify(request))),
    embed: (texts, normalize) => this.#loaded.embed(JSON.stringify(texts), normalize),
    memory: () => this.#memory?.buffer.byteLength ?? 0,
  };

  /** The error of a module that cannot go on: a trap, or a panic before it. */
  fatal(error: unknown): { code: "out-of-memory" | "internal"; message: string } | undefined {
    if (!(error instanceof WebAssembly.RuntimeError) && !(error instanceof RangeError)) return undefined;
    let panic: string | undefined;
    try {
      panic = this.#glue.takePanic();
    } catch {
      // Not even that works any more.
    }
    if (panic) return { code: "internal", message: panic };
    const megabytes = Math.round((this.#memory?.buffer.byteLength ?? 0) / 2 ** 20);
    return { code: "out-of-memory", message: `the engine stopped with ${megabytes} MB of memory (${error.message})` };
  }

  get #loaded(): simd.Host {
    if (!this.#model) throw new OxidizeError("unloaded", "no model is loaded");
    return this.#model;
  }

  async #loadModel(request: LoadRequest): Promise<ModelInfo> {
    const start = performance.now();
    await this.#instantiate(request);
    const glue = this.#glue;
    const loader = new glue.Loader();
    const report = this.#reporter();
    const place = {
      host: this.#host,
      signal: this.#load.signal,
      useCache: request.useCache,
      cachedOnly: request.cachedOnly,
      report,
      digest: () => new glue.Digest(),
      allocate: (name: string, bytes: number) => loader.addFile(name, bytes) >>> 0,
      view: (address: number, bytes: number) => new Uint8Array(this.#buffer, address, bytes),
      checksum: () => loader.checksum(),
    };
    const placed = [];
    for (const file of request.files) placed.push(await placeFile(file, place));
    for (const { file, scale } of request.adapters) {
      let address = 0;
      let length = 0;
      const allocate = (name: string, bytes: number) => {
        length = bytes;
        address = loader.addAdapter(name, bytes, scale) >>> 0;
        return address;
      };
      const checksum = () => {
        const digest = new glue.Digest();
        digest.update(new Uint8Array(this.#buffer, address, length).slice());
        const fast = digest.fast();
        digest.free();
        return fast;
      };
      await placeFile(file, { ...place, allocate, checksum, cachedOnly: false });
    }
    if (this.#load.signal.aborted) throw new AbortError();
    this.#host.port.postMessage({ progress: { phase: "preparing", file: "", loaded: 0 } } satisfies Reply);
    const options = { ...request.options, threads: request.threads, memoryLimit: this.#maxPages * PAGE };
    this.#model = loader.finish(JSON.stringify(options));
    loader.free();
    return {
      ...JSON.parse(this.#model.info()),
      backend: "cpu",
      build: request.build,
      threads: request.threads,
      reasons: request.reasons,
      memoryBytes: this.#buffer.byteLength,
      cached: placed.every(({ cached }) => cached),
      cacheReason: placed.find(({ reason }) => reason)?.reason ?? null,
      loadTime: performance.now() - start,
    };
  }

  get #buffer(): ArrayBuffer {
    return (this.#memory as WebAssembly.Memory).buffer as ArrayBuffer;
  }

  async #instantiate(request: LoadRequest): Promise<void> {
    if (request.build === "threads") {
      const module = await this.#host.compile(new URL("./wasm/threads/oxidize_bg.wasm", import.meta.url));
      this.#memory = this.#sharedMemory();
      this.#glue = threads;
      await threads.default({ module_or_path: module, memory: this.#memory });
      await this.#startThreads({ module, memory: this.#memory }, request.threads - 1);
    } else {
      const module = await this.#host.compile(new URL("./wasm/simd/oxidize_bg.wasm", import.meta.url));
      this.#memory = (await simd.default({ module_or_path: module })).memory;
    }
    this.#glue.start();
  }

  #sharedMemory(): WebAssembly.Memory {
    for (const maximum of MAX_PAGES) {
      try {
        const memory = new WebAssembly.Memory({ initial: INITIAL_PAGES, maximum, shared: true });
        this.#maxPages = maximum;
        return memory;
      } catch {
        // A smaller one may do.
      }
    }
    throw new OxidizeError("out-of-memory", "the browser refuses shared memory");
  }

  async #startThreads(start: ThreadStart, count: number): Promise<void> {
    const ready = Array.from({ length: count }, () => {
      const thread = this.#host.startThread();
      return new Promise<void>((resolve, reject) => {
        thread.onmessage = () => resolve();
        thread.onerror = ({ message }) => reject(new OxidizeError("internal", `a thread did not start: ${message}`));
        thread.postMessage(start);
      });
    });
    await Promise.all(ready);
  }

  /** Reports progress, not more often than a page can show it. */
  #reporter() {
    let last = Number.NEGATIVE_INFINITY;
    return (progress: Extract<Reply, { progress: unknown }>["progress"]) => {
      const now = performance.now();
      if (now - last < REPORT_INTERVAL && progress.loaded !== progress.total && progress.loaded > 0) return;
      last = now;
      this.#host.port.postMessage({ progress } satisfies Reply);
    };
  }

  #run(): void {
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#turn.port2.postMessage(null);
  }

  #step(): void {
    try {
      const { working, events } = JSON.parse(this.#loaded.step()) as { working: boolean; events: AnswerEvent[] };
      if (events.length > 0) this.#host.port.postMessage({ events } satisfies Reply);
      this.#isRunning = working;
    } catch (error) {
      this.#isRunning = false;
      this.#host.port.postMessage({ fatal: this.fatal(error) ?? toPlain(error) } satisfies Reply);
      return;
    }
    if (this.#isRunning) this.#turn.port2.postMessage(null);
  }
}
