/** A file at a URL. */
export interface RemoteFile {
  /** Address of the file. */
  url: string | URL;
  /** SHA-256 of the file in hexadecimal digits. A file with another one is refused. */
  sha256?: string;
  /** Headers of the request, such as `Authorization`. */
  headers?: Record<string, string>;
}

/** A file of a model. */
export type FileSource = string | URL | RemoteFile | Blob | ArrayBuffer | Uint8Array | ReadableStream<Uint8Array>;

/**
 * A model: a file, the files of a split GGUF model in order, or a model that an earlier visit has downloaded
 * (`{ cached: "https://…" }`).
 */
export type ModelSource = FileSource | FileSource[] | { cached: string };

/** A LoRA adapter. */
export interface AdapterSource {
  source: FileSource;
  /** Scale of the adapter; 1 applies it as trained. */
  scale?: number;
}

/** Progress of `Oxidize.load`. */
export interface LoadProgress {
  /**
   * `waiting` for another tab that downloads the same file, `downloading`, `reading` from the cache into memory, or
   * `preparing` the model.
   */
  phase: "waiting" | "downloading" | "reading" | "preparing";
  /** Name of the file. */
  file: string;
  /** Bytes that are there. */
  loaded: number;
  /** Bytes of the file, if known. */
  total?: number;
  /** Bytes that an earlier, interrupted download has left. */
  resumed?: number;
}

/** Settings of `Oxidize.load`. */
export interface LoadOptions {
  /** Called with the progress. */
  onProgress?: (progress: LoadProgress) => void;
  /** Device that computes. `auto` is the CPU; `webgpu` is not available yet. */
  backend?: "auto" | "webgpu" | "cpu";
  /** Number of threads. By default as many as the machine has cores, at most 8, where the page can share memory. */
  threads?: number;
  /** Maximum tokens of a request, prompt and answer together. */
  contextSize?: number;
  /** Tokens of all requests and of the prefix cache together; one context by default. */
  cacheTokens?: number;
  /** Maximum requests that run at once; 4 by default. */
  parallel?: number;
  /** Type of the KV cache. */
  kvType?: "f32" | "f16" | "q8_0" | "q4_0";
  /** LoRA adapters. */
  adapters?: AdapterSource[];
  /** Keeps downloaded files for the next visit. On by default. */
  cache?: boolean;
  /** Build of the engine, for tests; by default the best that the browser can run. */
  build?: Build;
  /** Aborts loading. What was downloaded is kept, so that loading again resumes. */
  signal?: AbortSignal;
}

/** A build of the engine. */
export type Build = "simd" | "threads" | "relaxed" | "threads-relaxed";

/** A tool call of an answer, in OpenAI's form. */
export interface ToolCall {
  id: string;
  type: "function";
  function: {
    name: string;
    /** Arguments as JSON text. */
    arguments: string;
  };
}

/** A message of a conversation, in OpenAI's form. */
export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool" | (string & {});
  content?: string | { type: "text"; text: string }[] | null;
  name?: string;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  reasoning_content?: string;
}

/** A tool, in OpenAI's form. */
export interface Tool {
  type: "function";
  function: { name: string; description?: string; parameters?: object };
}

/** Settings of an answer. Sampling settings that are not given are those of the model's authors. */
export interface CompleteOptions {
  /** Maximum tokens to generate; as many as the context holds by default. */
  maxTokens?: number;
  /** Minimum tokens to generate. */
  minTokens?: number;
  /** Texts that end the answer and are not part of it. */
  stop?: string | string[];
  /** Token ids that end the answer. */
  stopTokens?: number[];
  /** Continues past tokens that end the answer. */
  ignoreEos?: boolean;
  /** Texts that the answer never contains. */
  bannedStrings?: string[];

  /** JSON schema of the answer. */
  schema?: object;
  /** Any JSON object. */
  json?: boolean;
  /** GBNF grammar of the answer. */
  grammar?: string;
  /** Regular expression that matches the whole answer. */
  regex?: string;
  /** Grammar of the answer in llguidance's dialect of Lark. */
  lark?: string;
  /** Texts, one of which is the answer. */
  choice?: string[];

  /** Temperature; 0 takes the most likely token. */
  temperature?: number;
  /** Keeps the k most likely tokens; 0 is off. */
  topK?: number;
  /** Keeps the most likely tokens with this total probability; 1 is off. */
  topP?: number;
  /** Drops tokens with less than this fraction of the highest probability; 0 is off. */
  minP?: number;
  /** Locally typical sampling; 1 is off. */
  typicalP?: number;
  /** Tail-free sampling; 1 is off. */
  tfsZ?: number;
  /** Top-nσ sampling; 0 is off. */
  topNSigma?: number;
  /** XTC: probability of removing the top choices. */
  xtcProbability?: number;
  /** XTC: minimum probability of a top choice. */
  xtcThreshold?: number;
  /** Dynamic temperature: range around the temperature. */
  dynatempRange?: number;
  /** Dynamic temperature: exponent. */
  dynatempExponent?: number;
  /** Mirostat: 0 is off, 1 or 2 is the version. */
  mirostat?: 0 | 1 | 2;
  /** Mirostat: target entropy τ. */
  mirostatTau?: number;
  /** Mirostat: learning rate η. */
  mirostatEta?: number;
  /** DRY: multiplier of the penalty; 0 is off. */
  dryMultiplier?: number;
  /** DRY: base of the penalty. */
  dryBase?: number;
  /** DRY: length of repetitions that is not penalized. */
  dryAllowedLength?: number;
  /** DRY: number of last tokens to search; -1 is all. */
  dryPenaltyLastN?: number;
  /** DRY: strings that end a repetition. */
  drySequenceBreakers?: string[];
  /** Repetition penalty; 1 is off. */
  repeatPenalty?: number;
  /** Number of last tokens that are penalized; -1 is all. */
  repeatLastN?: number;
  /** Frequency penalty; 0 is off. */
  frequencyPenalty?: number;
  /** Presence penalty; 0 is off. */
  presencePenalty?: number;
  /** Penalizes newlines, too. */
  penalizeNewline?: boolean;
  /** Added to the logits of these token ids. */
  logitBias?: Record<number, number>;
  /** Names of the samplers, in order. */
  samplers?: string[];
  /** Seed of the sampler: equal seeds give equal answers. */
  seed?: number;
  /** Reports the log probability of each token, and of this number of most likely ones. */
  logprobs?: number;

  /** Scales of the LoRA adapters, in the order of `LoadOptions.adapters`. */
  adapters?: number[];
  /** Scheduling priority; higher runs first. */
  priority?: number;
  /** Called with the progress of the prompt. */
  onPrompt?: (progress: PromptProgress) => void;
  /** Ends the answer. */
  signal?: AbortSignal;
}

/** Settings of an answer to a conversation. */
export interface ChatOptions extends CompleteOptions {
  /** Tools that the model may call. */
  tools?: Tool[];
  /** `none` forbids calls. */
  toolChoice?: "auto" | "none";
  /** Reasoning before the answer, on or off. By default as the chat template does. */
  thinking?: boolean;
  /** Maximum tokens of reasoning. */
  thinkingBudget?: number;
  /** Documents for the chat template. */
  documents?: object[];
  /** Variables for the chat template. */
  templateArgs?: Record<string, unknown>;
  /** Continues the last message, which is the assistant's. */
  continueFinalMessage?: boolean;
}

/** Progress of a prompt, in tokens. */
export interface PromptProgress {
  total: number;
  /** Found in the prefix cache. */
  cached: number;
  processed: number;
}

/** A part of an answer. */
export interface Delta {
  /** Text of the answer. */
  text: string;
  /** Text of the reasoning before it. */
  reasoning: string;
  /** Complete tool calls. */
  toolCalls: ToolCall[];
  /** Token id; undefined in the last part, which has what was held back. */
  token?: number;
  /** Log probability, if asked for. */
  logprob?: number;
  /** The most likely tokens and their log probabilities, if asked for. */
  top?: [token: number, logprob: number][];
}

/** The end of an answer. */
export interface Completion {
  /** Reason of the end. `context-full`: the context has no room for more. */
  finishReason: "stop" | "length" | "context-full" | "tool-calls";
  promptTokens: number;
  /** Prompt tokens that were found in the prefix cache. */
  cachedTokens: number;
  generatedTokens: number;
  /** Generated tokens that belong to reasoning. */
  reasoningTokens: number;
  /** Seed of the sampler, a 64-bit number as text. */
  seed: string;
  /** Durations in milliseconds. */
  timings: { queued: number; prompt: number; generation: number };
}

/** A loaded model. */
export interface ModelInfo {
  architecture: string;
  name: string | null;
  parameters: number;
  /** Bytes of the model's files. */
  fileBytes: number;
  vocabularySize: number;
  embeddingSize: number;
  /** Context that the model was trained for, in tokens. */
  trainedContext: number;
  /** Context of requests; null for embedding models. */
  contextSize: number | null;
  /** False for embedding models. */
  generatesText: boolean;
  hasChatTemplate: boolean;
  /** Pooling of embeddings that the model declares. */
  pooling: string | null;
  /** Names of the LoRA adapters. */
  adapters: string[];
  /** Device that computes. */
  backend: "cpu";
  build: Build;
  threads: number;
  /** Reasons for the build and the number of threads. */
  reasons: string[];
  /** Bytes of memory in use. */
  memoryBytes: number;
  /** True if the files are kept for the next visit. */
  cached: boolean;
  /** Reason if they are not. */
  cacheReason: string | null;
  /** Milliseconds that loading took. */
  loadTime: number;
}
