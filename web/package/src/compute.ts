import init, { runThread } from "./wasm/threads/oxidize.js";

/** First message to a thread: the module and the memory that it shares. */
export interface ThreadStart {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
}

/** Bytes of the stack of a thread. */
const STACK = 1 << 20;

/** Waits for the first message, then computes until the worker is terminated. */
export function computeOn(port: {
  postMessage(message: unknown): void;
  onmessage: ((event: { data: unknown }) => void) | null;
}): void {
  port.onmessage = async ({ data }) => {
    const { module, memory } = data as ThreadStart;
    await init({ module_or_path: module, memory, thread_stack_size: STACK });
    port.postMessage("ready");
    runThread();
  };
}
