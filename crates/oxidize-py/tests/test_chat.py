"""Chat completions: messages, tools, formats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from oxidize import Llama
from oxidize.llama_cpp import llama_chat_format as formats

HI = [{"role": "user", "content": "Say hi."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
FORCED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def chat(llm: Llama, **arguments: Any) -> Any:
    return llm.create_chat_completion(**{"messages": HI, "max_tokens": 24, "temperature": 0, **arguments})


def test_a_message_and_its_chunks(smol: Llama) -> None:
    whole = chat(smol)
    assert whole["id"].startswith("chatcmpl-") and whole["object"] == "chat.completion"
    (choice,) = whole["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert set(choice["message"]) == {"role", "content"} and choice["message"]["role"] == "assistant"
    chunks = list(chat(smol, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_log_probabilities(smol: Llama) -> None:
    logprobs = chat(smol, logprobs=True, top_logprobs=2, max_tokens=3)["choices"][0]["logprobs"]
    assert set(logprobs) == {"content", "refusal"} and len(logprobs["content"]) == 3
    for token in logprobs["content"]:
        assert set(token) == {"token", "bytes", "logprob", "top_logprobs"}
        assert {"token": token["token"], "logprob": token["logprob"], "bytes": None} in token["top_logprobs"]


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    ],
)
def test_response_formats_in_both_shapes(smol: Llama, response_format: Any) -> None:
    answer = chat(smol, response_format=response_format, max_tokens=60)
    parsed = json.loads(answer["choices"][0]["message"]["content"])
    assert set(parsed) == {"age"} and isinstance(parsed["age"], int)


def test_a_forced_tool(smol: Llama) -> None:
    message = chat(smol, tools=TOOLS, tool_choice=FORCED, max_tokens=60)["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    (call,) = message["message"]["tool_calls"]
    assert message["message"]["content"] is None
    assert call["id"].startswith("call__0_weather_cmpl-")
    assert call["function"] == message["message"]["function_call"]
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)
    chunks = list(chat(smol, tools=TOOLS, tool_choice=FORCED, max_tokens=60, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert all(set(delta) == {"role", "content", "function_call", "tool_calls"} for delta in deltas)
    arguments = "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[1:-1])
    assert arguments == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_required_tool_and_one_that_is_not_there(smol: Llama) -> None:
    message = chat(smol, tools=TOOLS, tool_choice="required", max_tokens=100)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "weather"
    wrong = {"type": "function", "function": {"name": "nothing"}}
    with pytest.raises(ValueError, match="^Tool choice 'nothing' not found in tools.$"):
        chat(smol, tools=TOOLS, tool_choice=wrong)
    legacy = chat(smol, functions=[TOOLS[0]["function"]], function_call={"name": "weather"}, max_tokens=60)
    assert legacy["choices"][0]["message"]["function_call"]["name"] == "weather"


def test_calls_that_the_model_writes_itself_are_recognized(smol: Llama) -> None:
    # The text of a call comes from a logits processor: the model is too small to write one reliably.
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>'
    tokens = smol.tokenize(text.encode(), add_bos=False, special=True)
    begin: list[int] = []

    def write(input_ids: Any, scores: Any) -> Any:
        begin.append(len(input_ids))
        scores[:] = float("-inf")
        scores[tokens[len(input_ids) - begin[0]]] = 0.0
        return scores

    answer = chat(smol, tools=TOOLS, tool_choice="auto", max_tokens=100, logits_processor=[write])
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    begin.clear()
    chunks = list(chat(smol, tools=TOOLS, max_tokens=100, logits_processor=[write], stream=True))
    calls = [chunk for chunk in chunks if "tool_calls" in chunk["choices"][0]["delta"]]
    assert len(calls) == 1 and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_prompt_is_that_of_the_template(smol: Llama) -> None:
    handler_prompt: list[Any] = []
    original = smol.create_completion
    smol.create_completion = lambda prompt, **kw: handler_prompt.append(prompt) or original(prompt, **kw)  # type: ignore
    try:
        chat(smol, max_tokens=1)
    finally:
        del smol.create_completion  # type: ignore[method-assign]
    text = smol.detokenize(handler_prompt[0], special=True).decode()
    assert text.endswith("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n")


def test_unknown_formats_are_named(tiny_path: str) -> None:
    with Llama(tiny_path, n_ctx=128, chat_format="nothing") as llm:
        with pytest.raises(formats.LlamaChatCompletionHandlerNotFoundException) as caught:
            llm.create_chat_completion(HI)
    assert str(caught.value).startswith("Invalid chat handler: nothing (valid formats: ['llama-2', ")


def test_formats_can_be_registered(tiny_path: str) -> None:
    @formats.register_chat_format("shout")
    def format_shout(messages: Any, **kwargs: Any) -> Any:
        return formats.ChatFormatterResponse(prompt=messages[0]["content"].upper(), stop="!")

    registry = formats.LlamaChatCompletionHandlerRegistry()
    try:
        with pytest.raises(ValueError, match="already registered"):
            formats.register_chat_format("shout")(format_shout)
        with Llama(tiny_path, n_ctx=128, chat_format="shout") as llm:
            assert llm.create_chat_completion(HI, max_tokens=2)["object"] == "chat.completion"  # type: ignore
    finally:
        registry.unregister_chat_handler("shout")


CONVERSATION = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "A"},
    {"role": "assistant", "content": "B"},
    {"role": "user", "content": "C"},
]


@pytest.mark.parametrize(
    ("name", "prompt", "stop"),
    [
        (
            "chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
            "<|im_end|>",
        ),
        ("llama-2", "[INST] <<SYS>>\nS\n<</SYS>> A [/INST]B </s><s>[INST]C  [/INST]", None),
        ("mistral-instruct", "[INST] A [/INST]B</s>[INST] C [/INST]", "</s>"),
        (
            "zephyr",
            "<|system|>\nS</s>\n<|user|>\n\nA</s>\n<|assistant|>\n\nB</s>\n<|user|>\n\nC</s>\n<|assistant|>\n\n",
            "</s>",
        ),
        (
            "gemma",
            "<start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
            "<end_of_turn>\n",
        ),
        ("openbuddy", "S\nUser: A\nAssistant: B\nUser: C\nAssistant:", None),
        (
            "open-orca",
            "S<|end_of_turn|>\nUser: A<|end_of_turn|>\nAssistant: B<|end_of_turn|>\nUser: C<|end_of_turn|>\nAssistant: ",
            "User",
        ),
        ("alpaca", "S\n\n### Instruction: A\n\n### Response: B</s>### Instruction: C\n\n", None),
        (
            "llama-3",
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
        ),
    ],
)
def test_prompts_of_named_formats(name: str, prompt: str, stop: Any) -> None:
    formatter = getattr(formats, "format_" + name.replace("-", "_").replace("llama_", "llama"))
    response = formatter(messages=CONVERSATION)
    assert (response.prompt, response.stop) == (prompt, stop)


def test_images_are_refused(smol: Llama) -> None:
    with pytest.raises(NotImplementedError, match="Llava15ChatHandler"):
        formats.Llava15ChatHandler(clip_model_path="clip.gguf")
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(ValueError, match="image_url"):
        chat(smol, messages=[{"role": "user", "content": [image]}])


def test_openai_classes(smol: Llama) -> None:
    pytest.importorskip("openai")
    answer = smol.create_chat_completion_openai_v1(HI, max_tokens=3)
    assert answer.choices[0].message.role == "assistant"
    chunks = list(smol.create_chat_completion_openai_v1(HI, max_tokens=3, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    forced = smol.create_chat_completion_openai_v1(HI, tools=TOOLS, tool_choice=FORCED, max_tokens=60)
    assert forced.choices[0].message.tool_calls[0].function.name == "weather"
