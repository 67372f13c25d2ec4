import type { Answer } from "./answer.js";
import { OxidizeError } from "./errors.js";
import type { Oxidize } from "./model.js";
import type { ChatOptions, Completion, Message, Tool, ToolCall } from "./types.js";

/** Request of `openai.chat.completions.create`. Fields of OpenAI that are not listed are ignored. */
export interface ChatCompletionRequest {
  messages: Message[];
  model?: string;
  stream?: boolean;
  stream_options?: { include_usage?: boolean };
  max_tokens?: number;
  max_completion_tokens?: number;
  temperature?: number;
  top_p?: number;
  frequency_penalty?: number;
  presence_penalty?: number;
  seed?: number;
  stop?: string | string[];
  logit_bias?: Record<string, number>;
  logprobs?: boolean;
  top_logprobs?: number;
  tools?: Tool[];
  tool_choice?: "auto" | "none";
  response_format?:
    | { type: "text" }
    | { type: "json_object" }
    | { type: "json_schema"; json_schema: { schema: object; name?: string } };
  /** `none` turns reasoning off. */
  reasoning_effort?: string;
}

/** Token counts. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}

/** Log probability of a token. */
export interface TokenLogprob {
  token: string;
  logprob: number;
  top_logprobs: { token: string; logprob: number }[];
}

/** A chat completion. */
export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: {
    index: 0;
    message: {
      role: "assistant";
      content: string | null;
      refusal: null;
      reasoning_content?: string;
      tool_calls?: ToolCall[];
    };
    logprobs: { content: TokenLogprob[] } | null;
    finish_reason: "stop" | "length" | "tool_calls";
  }[];
  usage: Usage;
}

/** A part of a streamed chat completion. */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: {
    index: 0;
    delta: {
      role?: "assistant";
      content?: string;
      reasoning_content?: string;
      tool_calls?: (ToolCall & { index: number })[];
    };
    logprobs: { content: TokenLogprob[] } | null;
    finish_reason: "stop" | "length" | "tool_calls" | null;
  }[];
  usage?: Usage;
}

/** Request of `openai.embeddings.create`. */
export interface EmbeddingRequest {
  input: string | string[];
  model?: string;
}

/** Embeddings. */
export interface EmbeddingResponse {
  object: "list";
  data: { object: "embedding"; index: number; embedding: number[] }[];
  model: string;
}

/** A streamed chat completion. */
export type ChatCompletionStream = AsyncIterable<ChatCompletionChunk> & { controller: { abort(): void } };

/** Methods of OpenAI's client on a model of this page. */
export class OpenAi {
  #model: Oxidize;
  #count = 0;

  /** @internal */
  constructor(model: Oxidize) {
    this.#model = model;
  }

  /** Chat completions. */
  readonly chat = {
    completions: {
      create: ((request: ChatCompletionRequest, options: { signal?: AbortSignal } = {}) =>
        this.#create(request, options)) as ChatCompletionsCreate,
    },
  };

  /** Embeddings. */
  readonly embeddings = {
    create: async ({ input }: EmbeddingRequest): Promise<EmbeddingResponse> => {
      const vectors = await this.#model.embed([input].flat());
      const data = vectors.map((vector, index) => ({
        object: "embedding" as const,
        index,
        embedding: Array.from(vector),
      }));
      return { object: "list", data, model: await this.#name() };
    },
  };

  async #create(
    request: ChatCompletionRequest,
    { signal }: { signal?: AbortSignal },
  ): Promise<ChatCompletion | ChatCompletionStream> {
    const answer = this.#model.chat(request.messages, { ...settings(request), signal });
    const head = {
      id: `chatcmpl-${(this.#count += 1)}`,
      created: Math.floor(Date.now() / 1000),
      model: await this.#name(),
    };
    if (request.stream) {
      const chunks = this.#chunks(answer, head, request);
      return { [Symbol.asyncIterator]: () => chunks, controller: { abort: () => answer.abort() } };
    }
    const logprobs: TokenLogprob[] = [];
    for await (const part of answer) {
      if (part.logprob !== undefined) logprobs.push(await this.#logprob(part.token, part.logprob, part.top));
    }
    const [message, end] = [await answer.message(), await answer.done()];
    return {
      ...head,
      object: "chat.completion",
      choices: [
        {
          index: 0,
          message: {
            ...message,
            content: message.tool_calls && !message.content ? null : message.content,
            refusal: null,
          },
          logprobs: request.logprobs ? { content: logprobs } : null,
          finish_reason: reason(end),
        },
      ],
      usage: usage(end),
    };
  }

  async *#chunks(
    answer: Answer,
    head: { id: string; created: number; model: string },
    request: ChatCompletionRequest,
  ): AsyncGenerator<ChatCompletionChunk, void, void> {
    type Choice = ChatCompletionChunk["choices"][number];
    const chunk = (choice: Partial<Choice>): ChatCompletionChunk => ({
      ...head,
      object: "chat.completion.chunk",
      choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: null, ...choice }],
    });
    yield chunk({ delta: { role: "assistant", content: "" } });
    let calls = 0;
    for await (const part of answer) {
      const delta: Choice["delta"] = {
        ...(part.text && { content: part.text }),
        ...(part.reasoning && { reasoning_content: part.reasoning }),
        ...(part.toolCalls.length > 0 && { tool_calls: part.toolCalls.map((call) => ({ index: calls++, ...call })) }),
      };
      const logprobs =
        request.logprobs && part.logprob !== undefined
          ? { content: [await this.#logprob(part.token, part.logprob, part.top)] }
          : null;
      if (logprobs || Object.keys(delta).length > 0) yield chunk({ delta, logprobs });
    }
    const end = await answer.done();
    yield chunk({ finish_reason: reason(end) });
    if (request.stream_options?.include_usage) yield { ...chunk({}), choices: [], usage: usage(end) };
  }

  async #logprob(token = 0, logprob = 0, top: [number, number][] = []): Promise<TokenLogprob> {
    const text = (id: number) => this.#model.detokenize([id], { renderSpecial: true });
    return {
      token: await text(token),
      logprob,
      top_logprobs: await Promise.all(top.map(async ([id, logprob]) => ({ token: await text(id), logprob }))),
    };
  }

  async #name(): Promise<string> {
    const info = await this.#model.info();
    return info.name ?? info.architecture;
  }
}

interface ChatCompletionsCreate {
  (
    request: ChatCompletionRequest & { stream: true },
    options?: { signal?: AbortSignal },
  ): Promise<ChatCompletionStream>;
  (request: ChatCompletionRequest & { stream?: false }, options?: { signal?: AbortSignal }): Promise<ChatCompletion>;
}

function settings(request: ChatCompletionRequest): ChatOptions {
  const format = request.response_format;
  if (format && !["text", "json_object", "json_schema"].includes(format.type)) {
    throw new OxidizeError("invalid-argument", `response_format has type ${JSON.stringify(format.type)}`);
  }
  const all: ChatOptions = {
    maxTokens: request.max_completion_tokens ?? request.max_tokens,
    temperature: request.temperature,
    topP: request.top_p,
    frequencyPenalty: request.frequency_penalty,
    presencePenalty: request.presence_penalty,
    seed: request.seed,
    stop: request.stop,
    logitBias: request.logit_bias as Record<number, number> | undefined,
    logprobs: request.logprobs ? (request.top_logprobs ?? 0) : undefined,
    tools: request.tools,
    toolChoice: request.tool_choice,
    json: format?.type === "json_object" ? true : undefined,
    schema: format?.type === "json_schema" ? format.json_schema.schema : undefined,
    thinking: request.reasoning_effort === undefined ? undefined : request.reasoning_effort !== "none",
  };
  return all;
}

function reason({ finishReason }: Completion): "stop" | "length" | "tool_calls" {
  switch (finishReason) {
    case "stop":
      return "stop";
    case "tool-calls":
      return "tool_calls";
    default:
      return "length";
  }
}

function usage(end: Completion): Usage {
  return {
    prompt_tokens: end.promptTokens,
    completion_tokens: end.generatedTokens,
    total_tokens: end.promptTokens + end.generatedTokens,
    prompt_tokens_details: { cached_tokens: end.cachedTokens },
  };
}
