import { AbortError, fromPlain, OxidizeError } from "./errors.js";
import type { AnswerEvent } from "./protocol.js";
import type { Completion, Delta, Message, PromptProgress, ToolCall } from "./types.js";

/**
 * An answer: an async iterable of its parts. It begins when it is made, so that several answers run at once, and ends
 * early when the loop over it is left, or by {@link Answer.abort}.
 *
 * ```js
 * for await (const { text } of model.chat("Why is the sky blue?")) output.append(text);
 * const reply = await model.chat("Why is the sky blue?").text();
 * ```
 */
export class Answer implements AsyncIterable<Delta> {
  #parts: Delta[] = [];
  #read = 0;
  #error: OxidizeError | undefined;
  #completion: Completion | undefined;
  #wake: (() => void)[] = [];
  #cancel: () => void;
  #onPrompt: ((progress: PromptProgress) => void) | undefined;

  /** @internal */
  constructor(cancel: () => void, onPrompt?: (progress: PromptProgress) => void) {
    this.#cancel = cancel;
    this.#onPrompt = onPrompt;
  }

  /** Finish reason, token counts and timings; undefined until the end. */
  get completion(): Completion | undefined {
    return this.#completion;
  }

  /** Ends the answer. Readers get an error named `AbortError`. */
  abort(): void {
    if (this.#ended) return;
    this.#cancel();
    this.#fail(new AbortError("the answer was aborted"));
  }

  /** Waits for the whole answer and returns its text, without reasoning. */
  async text(): Promise<string> {
    await this.#end();
    return this.#join("text");
  }

  /** Waits for the whole answer and parses its text as JSON. */
  async json<T = unknown>(): Promise<T> {
    return JSON.parse(await this.text()) as T;
  }

  /** Waits for the whole answer and returns it as a message for the conversation. */
  async message(): Promise<Message & { role: "assistant"; content: string }> {
    await this.#end();
    const calls: ToolCall[] = this.#parts.flatMap((part) => part.toolCalls);
    const reasoning = this.#join("reasoning");
    return {
      role: "assistant",
      content: this.#join("text"),
      ...(reasoning && { reasoning_content: reasoning }),
      ...(calls.length > 0 && { tool_calls: calls }),
    };
  }

  /** Waits for the whole answer and returns its token ids. */
  async tokens(): Promise<number[]> {
    await this.#end();
    return this.#parts.flatMap((part) => (part.token === undefined ? [] : [part.token]));
  }

  /** Waits for the end. */
  async done(): Promise<Completion> {
    await this.#end();
    return this.#completion as Completion;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Delta, void, void> {
    try {
      for (;;) {
        const part = this.#parts[this.#read];
        if (part) {
          this.#read += 1;
          yield part;
        } else if (this.#error) {
          throw this.#error;
        } else if (this.#completion) {
          return;
        } else {
          await this.#change();
        }
      }
    } finally {
      this.abort();
    }
  }

  /** @internal True if no more events will come. */
  push(event: AnswerEvent): boolean {
    switch (event.type) {
      case "progress":
        this.#onPrompt?.({ total: event.total, cached: event.cached, processed: event.processed });
        return false;
      case "token":
        this.#parts.push(delta(event, event));
        break;
      case "end": {
        const { type: _type, id: _id, text, reasoning, toolCalls, ...completion } = event;
        if (text || reasoning || toolCalls) this.#parts.push(delta(event));
        this.#completion = completion;
        break;
      }
      case "error":
        this.#error ??= fromPlain(event);
        break;
    }
    this.#notify();
    return this.#ended;
  }

  /** @internal */
  fail(error: OxidizeError): void {
    if (!this.#ended) this.#fail(error);
  }

  get #ended(): boolean {
    return this.#error !== undefined || this.#completion !== undefined;
  }

  #fail(error: OxidizeError): void {
    this.#error = error;
    this.#notify();
  }

  #join(field: "text" | "reasoning"): string {
    return this.#parts.map((part) => part[field]).join("");
  }

  async #end(): Promise<void> {
    while (!this.#ended) await this.#change();
    if (this.#error) throw this.#error;
  }

  #change(): Promise<void> {
    return new Promise((resolve) => this.#wake.push(resolve));
  }

  #notify(): void {
    for (const wake of this.#wake.splice(0)) wake();
  }
}

function delta(
  event: { text?: string; reasoning?: string; toolCalls?: ToolCall[] },
  token?: { token: number; logprob?: number; top?: [number, number][] },
): Delta {
  const part: Delta = { text: event.text ?? "", reasoning: event.reasoning ?? "", toolCalls: event.toolCalls ?? [] };
  if (token) {
    part.token = token.token;
    if (token.logprob !== undefined) part.logprob = token.logprob;
    if (token.top) part.top = token.top;
  }
  return part;
}
