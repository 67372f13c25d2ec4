import type { PlainError } from "./errors.js";
import type { Build, LoadProgress, ModelInfo, PromptProgress, ToolCall } from "./types.js";

/** A file of a model as it crosses to the worker. */
export type PortableFile =
  | { kind: "url"; url: string; sha256?: string; headers?: Record<string, string> }
  | { kind: "blob"; blob: Blob; name: string }
  | { kind: "bytes"; bytes: Uint8Array; name: string }
  | { kind: "stream"; stream: ReadableStream<Uint8Array>; name: string }
  | { kind: "path"; path: string; name: string };

/** The model to load. */
export interface LoadRequest {
  files: PortableFile[];
  /** URL of a model that must be in the cache. */
  cachedOnly: boolean;
  adapters: { file: PortableFile; scale: number }[];
  useCache: boolean;
  build: Build;
  threads: number;
  reasons: string[];
  options: { contextSize?: number; cacheTokens?: number; parallel?: number; kvType?: string };
}

/** Calls of the page, with what they return. */
export interface Methods {
  load: (request: LoadRequest) => ModelInfo;
  abortLoad: () => void;
  submit: (id: number, request: object) => void;
  cancel: (id: number) => void;
  tokenize: (text: string, addSpecial: boolean, parseSpecial: boolean) => Uint32Array;
  detokenize: (tokens: number[], renderSpecial: boolean) => string;
  applyTemplate: (request: object) => { text: string; tokens: number[] };
  embed: (texts: string[], normalize: boolean) => Float32Array[];
  memory: () => number;
}

/** A message of the page to the worker. */
export interface Call {
  call: number;
  method: keyof Methods;
  args: unknown[];
}

/** A message of the worker to the page. */
export type Reply =
  | { reply: number; result?: unknown; error?: PlainError }
  | { progress: LoadProgress }
  | { events: AnswerEvent[] }
  | { fatal: PlainError };

interface EventDelta {
  text?: string;
  reasoning?: string;
  toolCalls?: ToolCall[];
}

/** An event of an answer. */
export type AnswerEvent =
  | ({ type: "progress"; id: number } & PromptProgress)
  | ({ type: "token"; id: number; token: number; logprob?: number; top?: [number, number][] } & EventDelta)
  | ({
      type: "end";
      id: number;
      finishReason: "stop" | "length" | "context-full" | "tool-calls";
      promptTokens: number;
      cachedTokens: number;
      generatedTokens: number;
      reasoningTokens: number;
      seed: string;
      timings: { queued: number; prompt: number; generation: number };
    } & EventDelta)
  | ({ type: "error"; id: number } & PlainError);
