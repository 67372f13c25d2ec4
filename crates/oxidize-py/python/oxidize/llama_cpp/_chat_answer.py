"""Chat completions: from a prompt to messages, tool calls included."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, List, Optional, Protocol

from .. import _oxidize
from .llama_grammar import LlamaGrammar

if TYPE_CHECKING:
    from .llama import Llama, StoppingCriteriaList


class Parser(Protocol):
    """Separates an answer into content and calls: JSON lists of pairs of a kind and a value."""

    def push(self, text: str) -> str:
        """The parts that ``text`` completes."""
        ...

    def finish(self) -> str:
        """The parts that were held back."""
        ...


# Tokens, text, stop strings and criteria of a prompt, for the tools that are offered, the one that is forced, and whether
# the answer may be a call or text.
Prompt = Callable[
    [Optional[List[Any]], Optional[str], bool], "tuple[list[int], str, list[str], StoppingCriteriaList | None]"
]
# The parser of an answer, for tools and the text of the prompt.
Recognizer = Callable[[List[Any], str], Parser]

# Settings of samplers and their defaults in chats.
_SAMPLING: dict[str, Any] = {
    "temperature": 0.2,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.05,
    "typical_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repeat_penalty": 1.0,
    "tfs_z": 1.0,
    "mirostat_mode": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
}


def answer_chat(
    llama: Llama,
    prompt: Prompt,
    recognizer: Recognizer | None,
    *,
    render_special: bool = False,
    functions: list[Any] | None = None,
    function_call: Any = None,
    tools: list[Any] | None = None,
    tool_choice: Any = None,
    stream: bool = False,
    stop: str | list[str] | None = None,
    seed: int | None = None,
    response_format: Any = None,
    max_tokens: int | None = None,
    model: str | None = None,
    logits_processor: Any = None,
    grammar: LlamaGrammar | None = None,
    logit_bias: Any = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    **arguments: Any,
) -> Any:
    """Answers the conversation that ``prompt`` renders.

    ``recognizer`` knows how the model writes calls; without it, those that are not forced stay text.
    """
    if functions is not None:
        tools = [{"type": "function", "function": function} for function in functions]
    if isinstance(function_call, str):
        tool_choice = function_call
    elif isinstance(function_call, dict) and "name" in function_call:
        tool_choice = {"type": "function", "function": {"name": function_call["name"]}}
    if response_format is not None:
        grammar = format_grammar(response_format) or grammar
    forced = _forced_tool(tools, tool_choice)
    schema = None
    if forced is not None:
        parameters = forced["function"].get("parameters") or {"type": "object"}
        grammar = LlamaGrammar.from_json_schema(json.dumps(parameters))
    elif tools and tool_choice == "required":
        schema = _oxidize.forced_call_schema(json.dumps(tools), json.dumps(tool_choice), False)
        grammar = LlamaGrammar.from_json_schema(schema or "{}")
    offered = tools if tools and tool_choice != "none" else None
    recognizes = offered is not None and forced is None and grammar is None and recognizer is not None
    forced_name = None if forced is None else forced["function"]["name"]
    tokens, text, more_stops, stopping_criteria = prompt(offered, forced_name, recognizes)
    stops = [stop] if isinstance(stop, str) else list(stop or [])
    settings = {name: arguments.get(name, default) for name, default in _SAMPLING.items()}
    options: dict[str, Any] = dict(
        max_tokens=max_tokens,
        logprobs=top_logprobs if logprobs else None,
        stop=stops + more_stops,
        seed=seed,
        model=model,
        stopping_criteria=stopping_criteria,
        logits_processor=logits_processor,
        grammar=grammar,
        logit_bias=logit_bias,
    )
    if logprobs and top_logprobs is None:
        options["logprobs"] = 0
    if recognizes or render_special:
        # Some families mark calls by control tokens, which plain text would lack.
        writer = llama._begin(tokens, settings, render_special=True, **options)
        completion: Any = writer.chunks() if stream else writer.whole()
    else:
        completion = llama.create_completion(tokens, stream=stream, **settings, **options)
    if forced is not None:
        name = forced["function"]["name"]
        return _forced_chunks(name, completion) if stream else _forced_message(name, completion)
    if schema is not None:
        return _required_chunks(completion) if stream else _required_message(completion)
    if offered is not None and recognizes and recognizer is not None:
        parser = recognizer(offered, text)
        legacy = functions is not None
        return _parsed_chunks(parser, completion) if stream else _parsed_message(parser, completion, legacy)
    return text_chunks(completion) if stream else text_message(completion)


def format_grammar(response_format: Any) -> LlamaGrammar | None:
    """The grammar of a ``response_format``, with a schema in llama.cpp's or in OpenAI's shape."""
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise ValueError(f"response_format of type {kind!r}; text, json_object and json_schema are supported")
    named = response_format.get("json_schema")
    schema = response_format.get("schema") if named is None else named.get("schema", named)
    if schema is not None:
        return LlamaGrammar.from_json_schema(json.dumps(schema))
    if kind == "json_schema":
        raise ValueError("response_format of type json_schema needs a schema")
    return LlamaGrammar(_grammar="", _kind="json_object")


def _forced_tool(tools: list[Any] | None, tool_choice: Any) -> Any:
    if not isinstance(tool_choice, dict) or tools is None:
        return None
    name = tool_choice["function"]["name"]
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    raise ValueError(f"Tool choice '{name}' not found in tools.")


def _chat_logprobs(logprobs: Any) -> Any:
    if logprobs is None:
        return None
    rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
    return {
        "content": [
            {
                "token": token,
                "bytes": None,
                "logprob": logprob,
                "top_logprobs": [
                    {"token": other, "logprob": value, "bytes": None} for other, value in (top or {}).items()
                ],
            }
            for token, logprob, top in rows
        ],
        "refusal": None,
    }


def _whole(completion: Any, message: Any, finish_reason: Any) -> Any:
    return {
        "id": "chat" + completion["id"],
        "object": "chat.completion",
        "created": completion["created"],
        "model": completion["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _chat_logprobs(completion["choices"][0]["logprobs"]),
                "finish_reason": finish_reason,
            }
        ],
        "usage": completion["usage"],
    }


def _chunk(chunk: Any, delta: Any, finish_reason: Any = None, logprobs: Any = None) -> Any:
    return {
        "id": "chat" + chunk["id"],
        "model": chunk["model"],
        "created": chunk["created"],
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}],
    }


def text_message(completion: Any) -> Any:
    """A message of text."""
    choice = completion["choices"][0]
    return _whole(completion, {"role": "assistant", "content": choice["text"]}, choice["finish_reason"])


def text_chunks(chunks: Iterator[Any]) -> Iterator[Any]:
    """The chunks of a message of text."""
    for index, chunk in enumerate(chunks):
        choice = chunk["choices"][0]
        if index == 0:
            yield _chunk(chunk, {"role": "assistant"})
        ended = choice["finish_reason"] is not None
        delta = {} if ended else {"content": choice["text"]}
        yield _chunk(chunk, delta, choice["finish_reason"], _chat_logprobs(choice["logprobs"]))


def _call(index: int, name: str, arguments: str, completion: Any) -> Any:
    return {
        "id": f"call__{index}_{name}_{completion['id']}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _calls_message(calls: list[Any], content: str | None, legacy: bool) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if legacy:
        message["function_call"] = calls[0]["function"]
    message["tool_calls"] = calls
    return message


def _forced_message(name: str, completion: Any) -> Any:
    call = _call(0, name, completion["choices"][0]["text"], completion)
    return _whole(completion, _calls_message([call], None, True), "tool_calls")


def _delta(role: Any = None, content: Any = None, function_call: Any = None, tool_calls: Any = None) -> Any:
    """A delta with all keys, as those of calls have."""
    return {"role": role, "content": content, "function_call": function_call, "tool_calls": tool_calls}


def _forced_chunks(name: str, chunks: Iterator[Any]) -> Iterator[Any]:
    first = last = None
    for chunk in chunks:
        choice = chunk["choices"][0]
        if first is None:
            first = chunk
            yield _chunk(chunk, _delta(role="assistant"))
        last = chunk
        if choice["finish_reason"] is not None:
            continue
        call = _call(0, name, choice["text"], first)
        yield _chunk(
            chunk,
            _delta(function_call=call["function"], tool_calls=[{"index": 0, **call}]),
            logprobs=_chat_logprobs(choice["logprobs"]),
        )
    if last is not None:
        yield _chunk(last, _delta(), "tool_calls")


def _required_call(text: str, completion: Any) -> Any:
    """The call of an answer that the grammar has forced; None if the answer was cut."""
    try:
        call = json.loads(text)
        return _call(0, call["name"], json.dumps(call["arguments"], ensure_ascii=False), completion)
    except (ValueError, KeyError, TypeError):
        return None


def _required_message(completion: Any) -> Any:
    call = _required_call(completion["choices"][0]["text"], completion)
    if call is None:
        return text_message(completion)
    return _whole(completion, _calls_message([call], None, True), "tool_calls")


def _required_chunks(chunks: Iterator[Any]) -> Iterator[Any]:
    text = ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        if not text:
            yield _chunk(chunk, _delta(role="assistant"))
        text += choice["text"]
        if choice["finish_reason"] is None:
            continue
        call = _required_call(text, chunk)
        if call is None:
            yield _chunk(chunk, _delta(content=text))
            yield _chunk(chunk, _delta(), choice["finish_reason"])
        else:
            yield _chunk(chunk, _delta(function_call=call["function"], tool_calls=[{"index": 0, **call}]))
            yield _chunk(chunk, _delta(), "tool_calls")


def _parsed_message(parser: Parser, completion: Any, legacy: bool) -> Any:
    choice = completion["choices"][0]
    parts = json.loads(parser.push(choice["text"])) + json.loads(parser.finish())
    content = "".join(value for kind, value in parts if kind == "content")
    values = [value for kind, value in parts if kind == "tool_call"]
    if not values:
        return _whole(completion, {"role": "assistant", "content": content}, choice["finish_reason"])
    calls = [_call(index, call["name"], call["arguments"], completion) for index, call in enumerate(values)]
    return _whole(completion, _calls_message(calls, content or None, legacy), "tool_calls")


def _parsed_chunks(parser: Parser, chunks: Iterator[Any]) -> Iterator[Any]:
    n_calls = 0
    for index, chunk in enumerate(chunks):
        choice = chunk["choices"][0]
        if index == 0:
            yield _chunk(chunk, {"role": "assistant"})
        parts = json.loads(parser.push(choice["text"]))
        ended = choice["finish_reason"] is not None
        if ended:
            parts += json.loads(parser.finish())
        logprobs = _chat_logprobs(choice["logprobs"])
        for kind, value in parts:
            if kind == "content":
                yield _chunk(chunk, {"content": value}, logprobs=logprobs)
                logprobs = None
            elif kind == "tool_call":
                call = _call(n_calls, value["name"], value["arguments"], chunk)
                yield _chunk(chunk, {"tool_calls": [{"index": n_calls, **call}]})
                n_calls += 1
        if ended:
            yield _chunk(chunk, {}, "tool_calls" if n_calls else choice["finish_reason"])
