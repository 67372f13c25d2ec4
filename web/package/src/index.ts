/**
 * Runs language models in the browser: GGUF files, chat, JSON schemas, embeddings.
 *
 * @packageDocumentation
 */
export { Answer } from "./answer.js";
export { AbortError, type ErrorCode, OxidizeError } from "./errors.js";
export { Oxidize } from "./model.js";
export type { CachedModel, Models, StorageState } from "./models.js";
export type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionRequest,
  ChatCompletionStream,
  EmbeddingRequest,
  EmbeddingResponse,
  OpenAi,
  TokenLogprob,
  Usage,
} from "./openai.js";
export type {
  AdapterSource,
  Build,
  ChatOptions,
  CompleteOptions,
  Completion,
  Delta,
  FileSource,
  LoadOptions,
  LoadProgress,
  Message,
  ModelInfo,
  ModelSource,
  PromptProgress,
  RemoteFile,
  Tool,
  ToolCall,
} from "./types.js";
