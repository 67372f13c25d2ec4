import { fromPlain, OxidizeError } from "./errors.js";
import type { WorkerLike } from "./platform.js";
import type { AnswerEvent, Call, Methods, Reply } from "./protocol.js";
import type { LoadProgress } from "./types.js";

/** Calls of the methods of a worker. */
export class Connection {
  onProgress: ((progress: LoadProgress) => void) | undefined;
  onEvents: ((events: AnswerEvent[]) => void) | undefined;
  onEnd: ((error: OxidizeError) => void) | undefined;
  #worker: WorkerLike;
  #calls = new Map<number, { resolve: (result: never) => void; reject: (error: OxidizeError) => void }>();
  #lastCall = 0;
  #closed: OxidizeError | undefined;

  constructor(worker: WorkerLike) {
    this.#worker = worker;
    worker.onmessage = ({ data }) => this.#receive(data as Reply);
    worker.onerror = ({ message }) => {
      this.close(new OxidizeError("internal", `the worker failed: ${message ?? "its script could not be loaded"}`));
    };
  }

  call<M extends keyof Methods>(method: M, ...args: Parameters<Methods[M]>): Promise<ReturnType<Methods[M]>> {
    if (this.#closed) return Promise.reject(this.#closed);
    const call = (this.#lastCall += 1);
    return new Promise((resolve, reject) => {
      this.#calls.set(call, { resolve: resolve as (result: never) => void, reject });
      const message: Call = { call, method, args };
      try {
        this.#worker.postMessage(message, transferables(args[0]));
      } catch (error) {
        this.#calls.delete(call);
        reject(new OxidizeError("invalid-argument", (error as Error).message));
      }
    });
  }

  /** Ends the worker. Later calls, and those that wait, fail with `error`. */
  close(error: OxidizeError): void {
    if (this.#closed) return;
    this.#closed = error;
    this.#worker.terminate();
    for (const { reject } of this.#calls.values()) reject(error);
    this.#calls.clear();
    this.onEnd?.(error);
  }

  #receive(reply: Reply): void {
    if ("events" in reply) {
      this.onEvents?.(reply.events);
    } else if ("progress" in reply) {
      this.onProgress?.(reply.progress);
    } else if ("fatal" in reply) {
      this.close(fromPlain(reply.fatal));
    } else {
      const call = this.#calls.get(reply.reply);
      this.#calls.delete(reply.reply);
      if (reply.error) call?.reject(fromPlain(reply.error));
      else call?.resolve(reply.result as never);
    }
  }
}

/** Streams of a request to load, which move to the worker. */
function transferables(request: unknown): Transferable[] {
  const files = (request as { files?: { stream?: ReadableStream }[] } | undefined)?.files ?? [];
  return Array.isArray(files) ? files.flatMap(({ stream }) => (stream ? [stream] : [])) : [];
}
