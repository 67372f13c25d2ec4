// The worker that owns a model, in Node.
import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { parentPort, Worker } from "node:worker_threads";
import { OxidizeError } from "../errors.js";
import type { WorkerHost } from "../host.js";
import { serve } from "../serve.js";
import { asWebWorker } from "./bridge.js";
import { portOf } from "./port.js";

if (!parentPort) throw new Error("this module is a worker");

const host: WorkerHost = {
  compile: async (url) => WebAssembly.compile(await readFile(url)),
  startThread: () => asWebWorker(new Worker(new URL("./thread.js", import.meta.url))),
  openFile: (path) => {
    try {
      const file = openSync(path, "r");
      return {
        size: fstatSync(file).size,
        read: (buffer, at) => readSync(file, buffer, 0, buffer.length, at),
        close: () => closeSync(file),
      };
    } catch (error) {
      throw new OxidizeError("invalid-argument", `${path} cannot be opened: ${(error as Error).message}`);
    }
  },
  port: portOf(parentPort),
};
serve(host);
