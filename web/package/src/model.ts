import { Answer } from "./answer.js";
import { chooseBuild } from "./builds.js";
import { Connection } from "./connection.js";
import { AbortError, OxidizeError } from "./errors.js";
import { models } from "./models.js";
import { OpenAi } from "./openai.js";
import { currentPlatform } from "./platform.js";
import type { LoadRequest } from "./protocol.js";
import { toPortable } from "./sources.js";
import type { ChatOptions, CompleteOptions, FileSource, LoadOptions, Message, ModelInfo, ModelSource } from "./types.js";

/**
 * A loaded model. {@link Oxidize.load} makes one; it lives in a worker of its own until {@link Oxidize.unload}.
 *
 * ```js
 * const model = await Oxidize.load("https://example.com/model.gguf", { onProgress: console.log });
 * for await (const { text } of model.chat([{ role: "user", content: "Hello!" }])) console.log(text);
 * ```
 */
export class Oxidize {
  #connection: Connection;
  #info: ModelInfo;
  #answers = new Map<number, Answer>();
  #lastAnswer = 0;

  /** Models of earlier visits, and the storage that they take. */
  static readonly models = models;

  /** The same model with the methods and types of OpenAI's client. */
  readonly openai: OpenAi;

  private constructor(connection: Connection, info: ModelInfo) {
    this.#connection = connection;
    this.#info = info;
    this.openai = new OpenAi(this);
    connection.onEvents = (events) => {
      for (const event of events) {
        const answer = this.#answers.get(event.id);
        if (answer?.push(event)) this.#answers.delete(event.id);
      }
    };
    connection.onEnd = (error) => {
      for (const answer of this.#answers.values()) answer.fail(error);
      this.#answers.clear();
    };
  }

  /**
   * Loads a model from one or several URLs, a `File`, bytes, a stream, or the cache. Downloads are kept in the browser's
   * storage (OPFS) and resumed after an interruption.
   */
  static async load(source: ModelSource, options: LoadOptions = {}): Promise<Oxidize> {
    const { signal } = options;
    if (signal?.aborted) throw new AbortError();
    const platform = currentPlatform();
    const choice = chooseBuild(platform, options);
    const request: LoadRequest = {
      ...filesOf(source),
      adapters: (options.adapters ?? []).map(({ source, scale = 1 }) => ({ file: toPortable(source), scale })),
      useCache: options.cache ?? true,
      ...choice,
      options: {
        contextSize: options.contextSize,
        cacheTokens: options.cacheTokens,
        parallel: options.parallel,
        kvType: options.kvType,
      },
    };
    const connection = new Connection(platform.startWorker());
    connection.onProgress = options.onProgress;
    const abort = () => void connection.call("abortLoad").catch(() => {});
    signal?.addEventListener("abort", abort, { once: true });
    try {
      return new Oxidize(connection, await connection.call("load", request));
    } catch (error) {
      connection.close(new OxidizeError("unloaded", "the model was not loaded"));
      throw error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  /** Answers a conversation: a message of the user, or a list of messages. */
  chat(messages: string | Message[], options: ChatOptions = {}): Answer {
    const list = typeof messages === "string" ? [{ role: "user", content: messages }] : messages;
    return this.#submit({ messages: list }, options);
  }

  /** Continues a text, or token ids. */
  complete(prompt: string | ArrayLike<number>, options: CompleteOptions = {}): Answer {
    return this.#submit(typeof prompt === "string" ? { prompt } : { tokens: Array.from(prompt) }, options);
  }

  /** Embeddings of texts, scaled to unit length unless `normalize` is false. */
  async embed(texts: string, options?: { normalize?: boolean }): Promise<Float32Array>;
  async embed(texts: string[], options?: { normalize?: boolean }): Promise<Float32Array[]>;
  async embed(
    texts: string | string[],
    { normalize = true }: { normalize?: boolean } = {},
  ): Promise<Float32Array | Float32Array[]> {
    const vectors = await this.#connection.call("embed", [texts].flat(), normalize);
    return typeof texts === "string" ? (vectors[0] as Float32Array) : vectors;
  }

  /** Token ids of a text. Special tokens are added as the model expects; in the text, they are plain text by default. */
  tokenize(text: string, options: { addSpecial?: boolean; parseSpecial?: boolean } = {}): Promise<Uint32Array> {
    return this.#connection.call("tokenize", text, options.addSpecial ?? true, options.parseSpecial ?? false);
  }

  /** Text of token ids, without control tokens by default. */
  detokenize(tokens: ArrayLike<number>, options: { renderSpecial?: boolean } = {}): Promise<string> {
    return this.#connection.call("detokenize", Array.from(tokens), options.renderSpecial ?? false);
  }

  /** The prompt of a conversation, as the model's chat template renders it. */
  applyTemplate(messages: Message[], options: ChatOptions = {}): Promise<{ text: string; tokens: number[] }> {
    const { signal: _signal, onPrompt: _onPrompt, ...settings } = options;
    return this.#connection.call("applyTemplate", { ...settings, messages });
  }

  /** The model, the build that runs it, and why. */
  async info(): Promise<ModelInfo> {
    return { ...this.#info, memoryBytes: await this.#connection.call("memory") };
  }

  /** Ends the workers, which frees all memory. Answers that run fail. */
  unload(): void {
    this.#connection.close(new OxidizeError("unloaded", "the model was unloaded"));
  }

  #submit(input: object, options: ChatOptions): Answer {
    const { signal, onPrompt, ...settings } = options;
    const id = (this.#lastAnswer += 1);
    const answer = new Answer(() => {
      this.#answers.delete(id);
      void this.#connection.call("cancel", id).catch(() => {});
    }, onPrompt);
    this.#answers.set(id, answer);
    if (signal) {
      const abort = () => answer.abort();
      if (signal.aborted) {
        abort();
        return answer;
      }
      signal.addEventListener("abort", abort, { once: true });
      const stop = () => signal.removeEventListener("abort", abort);
      answer.done().then(stop, stop);
    }
    const request = { ...settings, ...input, progress: onPrompt !== undefined };
    this.#connection.call("submit", id, request).catch((error: OxidizeError) => {
      this.#answers.delete(id);
      answer.fail(error);
    });
    return answer;
  }
}

function filesOf(source: ModelSource): { files: LoadRequest["files"]; cachedOnly: boolean } {
  if (typeof source === "object" && "cached" in source) {
    return { files: [toPortable(source.cached)], cachedOnly: true };
  }
  const files = (Array.isArray(source) ? source : [source]) as FileSource[];
  if (files.length === 0) throw new OxidizeError("invalid-argument", "the list of files is empty");
  return { files: files.map(toPortable), cachedOnly: false };
}
