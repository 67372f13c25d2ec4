import type { MessagePort } from "node:worker_threads";
import type { WorkerHost } from "../host.js";

/** A port of Node with the interface of a browser's worker. */
export function portOf(port: MessagePort): WorkerHost["port"] {
  const like: WorkerHost["port"] = {
    postMessage: (message, transfer) => port.postMessage(message, transfer as never),
    onmessage: null,
  };
  port.on("message", (data) => like.onmessage?.({ data }));
  return like;
}
