import type { Worker } from "node:worker_threads";
import type { WorkerLike } from "../platform.js";

/** A worker of Node with the interface of a browser's. */
export function asWebWorker(worker: Worker): WorkerLike {
  const like: WorkerLike = {
    postMessage: (message, transfer) => worker.postMessage(message, transfer as never),
    terminate: () => void worker.terminate(),
    onmessage: null,
    onerror: null,
  };
  worker.on("message", (data) => like.onmessage?.({ data }));
  worker.on("error", (error) => like.onerror?.({ message: (error as Error).message }));
  return like;
}
