/** The package in Node and in Deno. */
import { availableParallelism } from "node:os";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { usePlatform } from "../platform.js";
import { asWebWorker } from "./bridge.js";

usePlatform({
  startWorker: () => asWebWorker(new Worker(new URL("./worker.js", import.meta.url))),
  cores: availableParallelism,
  canShareMemory: () => true,
  // Not those of `fs.openAsBlob`.
  clonesBlobs: false,
  resolve: (address) => {
    // A single letter is a drive, not a scheme.
    if (!/^[a-z][a-z0-9+.-]+:/i.test(address)) return { path: resolve(address) };
    const url = new URL(address);
    return url.protocol === "file:" ? { path: fileURLToPath(url) } : { url: url.href };
  },
});

export * from "../index.js";
