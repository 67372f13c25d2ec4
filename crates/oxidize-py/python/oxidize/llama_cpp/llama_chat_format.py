"""Chat formats: how a conversation becomes a prompt, and an answer a message."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .. import _oxidize
from ._chat_answer import Parser, answer_chat
from ._chat_styles import STYLES, Style
from ._functionary import Dialect, DialectV1, DialectV2, functionary
from .llama_grammar import LlamaGrammar

if TYPE_CHECKING:
    from .llama import Llama, StoppingCriteriaList
    from .llama_types import CreateChatCompletionResponse, CreateChatCompletionStreamResponse

CHATML_CHAT_TEMPLATE = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML_BOS_TOKEN = "<s>"
CHATML_EOS_TOKEN = "<|im_end|>"

_MISTRAL = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_tokenSPACE}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
MISTRAL_INSTRUCT_CHAT_TEMPLATE = _MISTRAL.replace("SPACE", " + ' ' ")
MISTRAL_INSTRUCT_BOS_TOKEN = "<s>"
MISTRAL_INSTRUCT_EOS_TOKEN = "</s>"
MIXTRAL_INSTRUCT_CHAT_TEMPLATE = _MISTRAL.replace("SPACE", "")
LLAMA3_INSTRUCT_CHAT_TEMPLATE = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"


class LlamaChatCompletionHandler(Protocol):
    """Answers a conversation."""

    def __call__(
        self, *, llama: Llama, messages: list[Any], **kwargs: Any
    ) -> CreateChatCompletionResponse | Iterator[CreateChatCompletionStreamResponse]: ...


class LlamaChatCompletionHandlerNotFoundException(Exception):
    """There is no chat format of this name."""


class LlamaChatCompletionHandlerRegistry:
    """The chat formats by name. There is one registry."""

    _chat_handlers: dict[str, LlamaChatCompletionHandler] = {}
    _instance: LlamaChatCompletionHandlerRegistry | None = None

    def __new__(cls) -> LlamaChatCompletionHandlerRegistry:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def register_chat_completion_handler(
        self, name: str, chat_handler: LlamaChatCompletionHandler, overwrite: bool = False
    ) -> None:
        """Adds a format."""
        if not overwrite and name in self._chat_handlers:
            raise ValueError(
                f"Formatter with name '{name}' is already registered. Use `overwrite=True` to overwrite it."
            )
        self._chat_handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Removes a format."""
        if name not in self._chat_handlers:
            raise ValueError(f"No formatter registered under the name '{name}'.")
        del self._chat_handlers[name]

    def get_chat_completion_handler_by_name(self, name: str) -> LlamaChatCompletionHandler:
        """The handler of a format."""
        try:
            return self._chat_handlers[name]
        except KeyError:
            raise LlamaChatCompletionHandlerNotFoundException(
                f"Invalid chat handler: {name} (valid formats: {list(self._chat_handlers.keys())})"
            ) from None


def get_chat_completion_handler(name: str) -> LlamaChatCompletionHandler:
    """The handler of a format."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(
    name: str,
) -> Callable[[LlamaChatCompletionHandler], LlamaChatCompletionHandler]:
    """A decorator that adds a handler to the registry."""

    def register(handler: LlamaChatCompletionHandler) -> LlamaChatCompletionHandler:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return handler

    return register


@dataclasses.dataclass
class ChatFormatterResponse:
    """A prompt, and what ends its answer."""

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: StoppingCriteriaList | None = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """Turns a conversation into a prompt."""

    def __call__(self, *, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse: ...


def register_chat_format(name: str) -> Callable[[ChatFormatter], ChatFormatter]:
    """A decorator that adds a formatter to the registry."""

    def register(formatter: ChatFormatter) -> ChatFormatter:
        handler = chat_formatter_to_chat_completion_handler(formatter)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return formatter

    return register


class Jinja2ChatFormatter(ChatFormatter):
    """A chat template in Jinja, rendered without the package jinja2."""

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: list[int] | None = None,
    ) -> None:
        self.template = template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = set(stop_token_ids) if stop_token_ids is not None else None

    def __call__(self, *, messages: list[Any], tools: list[Any] | None = None, **kwargs: Any) -> ChatFormatterResponse:
        conversation = {"messages": messages, "tools": tools, "template_args": kwargs}
        prompt = _oxidize.render_template(
            self.template, json.dumps(conversation), self.bos_token, self.eos_token, self.add_generation_prompt
        )
        return ChatFormatterResponse(prompt=prompt, stop=[self.eos_token], added_special=True)

    def to_chat_handler(self) -> LlamaChatCompletionHandler:
        """The handler of this format."""
        return chat_formatter_to_chat_completion_handler(self)


def chat_formatter_to_chat_completion_handler(chat_formatter: ChatFormatter) -> LlamaChatCompletionHandler:
    """A handler that asks the formatter for a prompt and answers it.

    Tool calls that are not forced stay text: only the model's own template says how it writes them.
    """

    def handler(*, llama: Llama, messages: list[Any], **arguments: Any) -> Any:
        def prompt(
            tools: list[Any] | None, forced: str | None, free: bool
        ) -> tuple[list[int], str, list[str], StoppingCriteriaList | None]:
            known = {"functions": arguments.get("functions"), "tool_choice": arguments.get("tool_choice")}
            result = chat_formatter(messages=messages, tools=tools, **known)
            tokens = llama.tokenize(result.prompt.encode("utf-8"), add_bos=not result.added_special, special=True)
            stop = [result.stop] if isinstance(result.stop, str) else result.stop or []
            return tokens, result.prompt, stop, result.stopping_criteria

        return answer_chat(llama, prompt, None, **arguments)

    return handler


def template_handler(template: str) -> LlamaChatCompletionHandler:
    """The handler of a model's own template, which knows how the model writes tool calls."""

    def handler(*, llama: Llama, messages: list[Any], **arguments: Any) -> Any:
        model = llama._model.require()

        def prompt(
            tools: list[Any] | None, forced: str | None, free: bool
        ) -> tuple[list[int], str, list[str], StoppingCriteriaList | None]:
            text, tokens = model.render(json.dumps({"messages": messages, "tools": tools}), template)
            return tokens, text, [], None

        def recognizer(tools: list[Any], text: str) -> Parser:
            return model.message_parser(json.dumps(tools), text, template, False)

        return answer_chat(llama, prompt, recognizer, **arguments)

    return handler


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: dict[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """The formatter of a ``tokenizer_config.json``."""

    def text(token: str) -> str:
        value = tokenizer_config[token]
        return str(value["content"] if isinstance(value, dict) else value)

    bos, eos = text("bos_token"), text("eos_token")
    formatter = Jinja2ChatFormatter(
        tokenizer_config["chat_template"], eos_token=eos, bos_token=bos, add_generation_prompt=add_generation_prompt
    )

    def format_messages(*, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        if add_generation_prompt:
            messages = [*messages, {"role": "assistant", "content": ""}]
        conversation = {"messages": messages, "template_args": kwargs, "continue_final_message": False}
        prompt = _oxidize.render_template(formatter.template, json.dumps(conversation), bos, eos, True)
        return ChatFormatterResponse(prompt=prompt, stop=[eos, bos], added_special=True)

    return format_messages


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: dict[str, Any], add_generation_prompt: bool = True
) -> LlamaChatCompletionHandler:
    """The handler of a ``tokenizer_config.json``."""
    formatter = hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    return chat_formatter_to_chat_completion_handler(formatter)


def hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path: Any) -> ChatFormatter:
    """The formatter of a tokenizer of transformers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path)

    def format_messages(*, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        prompt: str = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        return ChatFormatterResponse(prompt=prompt, stop=tokenizer.eos_token, added_special=True)

    return format_messages


def hf_autotokenizer_to_chat_completion_handler(pretrained_model_name_or_path: Any) -> LlamaChatCompletionHandler:
    """The handler of a tokenizer of transformers."""
    return chat_formatter_to_chat_completion_handler(hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path))


def guess_chat_format_from_gguf_metadata(metadata: dict[str, str]) -> str | None:
    """The name of the format whose template the metadata have."""
    names = {
        CHATML_CHAT_TEMPLATE: "chatml",
        MISTRAL_INSTRUCT_CHAT_TEMPLATE: "mistral-instruct",
        MIXTRAL_INSTRUCT_CHAT_TEMPLATE: "mistral-instruct",
        LLAMA3_INSTRUCT_CHAT_TEMPLATE: "llama-3",
    }
    return names.get(metadata.get("tokenizer.chat_template", ""))


def _style_formatter(style: Style) -> ChatFormatter:
    def format_messages(*, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        return ChatFormatterResponse(prompt=style.format(messages), stop=style.stop, added_special=style.added_special)

    return format_messages


for _name, _style in STYLES.items():
    globals()[f"format_{_style.function}"] = register_chat_format(_name)(_style_formatter(_style))

# The format of models without a template of their own, with tools.
LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(
    "chatml-function-calling", template_handler(CHATML_CHAT_TEMPLATE)
)


@register_chat_completion_handler("functionary")
def functionary_chat_handler(*, llama: Llama, messages: list[Any], **arguments: Any) -> Any:
    """Answers in the first format of Functionary."""
    return functionary(Dialect(), llama, messages, **arguments)


@register_chat_completion_handler("functionary-v1")
@register_chat_completion_handler("functionary-v2")
def functionary_v1_v2_chat_handler(*, llama: Llama, messages: list[Any], **arguments: Any) -> Any:
    """Answers in version 1 or 2 of Functionary's format, as the vocabulary tells."""
    is_v1 = llama._model.native_tokenizer.token_id("<|START_OF_FUNCTION_CALL|>") is not None
    return functionary(DialectV1() if is_v1 else DialectV2(), llama, messages, **arguments)


class _ImageHandler:
    """A handler of images, which packages import by name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: oxidize does not read images from Python; use text")


class Llava15ChatHandler(_ImageHandler):
    """LLaVA 1.5: not supported."""


class Llava16ChatHandler(_ImageHandler):
    """LLaVA 1.6: not supported."""


class MoondreamChatHandler(_ImageHandler):
    """Moondream: not supported."""


class NanoLlavaChatHandler(_ImageHandler):
    """nanoLLaVA: not supported."""


class Llama3VisionAlphaChatHandler(_ImageHandler):
    """Llama 3 Vision Alpha: not supported."""


Llama3VisionAlpha = Llama3VisionAlphaChatHandler


class ObsidianChatHandler(_ImageHandler):
    """Obsidian: not supported."""


class MTMDChatHandler(_ImageHandler):
    """Any model with a projector of images: not supported."""


class Gemma4ChatHandler(_ImageHandler):
    """Gemma 4: not supported."""


class MiniCPMv26ChatHandler(_ImageHandler):
    """MiniCPM-V 2.6: not supported."""


class Qwen25VLChatHandler(_ImageHandler):
    """Qwen2.5-VL: not supported."""


def _grammar_for_json(verbose: bool = False) -> LlamaGrammar:
    return LlamaGrammar(_grammar="", _kind="json_object")
