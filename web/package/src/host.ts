import type { WorkerLike } from "./platform.js";

/** A file of the machine, in Node. */
export interface LocalFile {
  size: number;
  /** Reads into `buffer` from an offset; returns the number of bytes. */
  read(buffer: Uint8Array, at: number): number;
  close(): void;
}

/** What the worker needs of its surroundings. */
export interface WorkerHost {
  /** Compiles a module of this package. */
  compile(url: URL): Promise<WebAssembly.Module>;
  /** Starts a worker that computes. */
  startThread(): WorkerLike;
  /** Opens a file of the machine, where there are paths. */
  openFile?(path: string): LocalFile;
  /** Where messages come from and go to. */
  port: {
    postMessage(message: unknown, transfer?: Transferable[]): void;
    onmessage: ((event: { data: unknown }) => void) | null;
  };
}

/** The worker of a browser. */
export function browserHost(): WorkerHost {
  return {
    compile: async (url) => {
      const response = await fetch(url);
      if (!response.ok) throw new Error(`${url}: HTTP ${response.status}`);
      // Servers that send another type than application/wasm are common.
      return response.headers.get("content-type")?.startsWith("application/wasm")
        ? WebAssembly.compileStreaming(response)
        : WebAssembly.compile(await response.arrayBuffer());
    },
    startThread: () =>
      new Worker(new URL("./thread.js", import.meta.url), {
        type: "module",
        name: "oxidize-thread",
      }) as unknown as WorkerLike,
    port: globalThis as unknown as WorkerHost["port"],
  };
}
