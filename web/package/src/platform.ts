/** A worker, of a browser or of Node. */
export interface WorkerLike {
  postMessage(message: unknown, transfer?: Transferable[]): void;
  /** Ends the worker at once, and with it the memory of the model. */
  terminate(): void;
  onmessage: ((event: { data: unknown }) => void) | null;
  onerror: ((event: { message?: string }) => void) | null;
}

/** What differs between a browser and Node. */
export interface Platform {
  /** Starts the worker that owns a model. */
  startWorker(): WorkerLike;
  /** Number of cores. */
  cores(): number;
  /** True if memory can be shared with workers. */
  canShareMemory(): boolean;
  /** True if every `Blob` can be sent to a worker. */
  clonesBlobs: boolean;
  /** Resolves an address against the page; a path to a file where there are paths. */
  resolve(address: string): { url: string } | { path: string };
}

/** The browser. */
export const browser: Platform = {
  startWorker: () =>
    new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "oxidize" }) as unknown as WorkerLike,
  cores: () => navigator.hardwareConcurrency || 1,
  canShareMemory: () => globalThis.crossOriginIsolated === true && typeof SharedArrayBuffer !== "undefined",
  clonesBlobs: true,
  resolve: (address) => ({ url: new URL(address, globalThis.location?.href).href }),
};

let platform: Platform = browser;

/** The platform in use. */
export function currentPlatform(): Platform {
  return platform;
}

/** Sets the platform, before a model is loaded. */
export function usePlatform(other: Platform): void {
  platform = other;
}
