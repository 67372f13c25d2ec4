"""Prompts of model families from before chat templates, by the names of llama-cpp-python."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

Turns = list  # Pairs of the beginning of a turn and its text; None for the turn to be written.


@dataclasses.dataclass(frozen=True)
class Style:
    """A format: the beginnings of turns, what joins them, and what ends the answer."""

    # Name of the Python function, `format_…`.
    function: str
    user: str
    assistant: str
    join: Callable[[str, Any], str]
    # The system message, with `{}` for its text. `default` stands for a missing one.
    system: str = "{}"
    default: str = ""
    # True if the system message is left out when it is empty.
    optional_system: bool = False
    stop: str | list[str] | None = None
    added_special: bool = False

    def format(self, messages: list[Any]) -> str:
        """The prompt of a conversation."""
        texts = [message["content"] or "" for message in messages if message["role"] == "system"]
        system = texts[0] if texts and "{}" in self.system else self.default
        if system or not self.optional_system:
            system = self.system.replace("{}", system)
        begins = {"user": self.user, "assistant": self.assistant}
        turns = [
            (begins[message["role"]], message.get("content") if isinstance(message.get("content"), str) else None)
            for message in messages
            if message["role"] in begins
        ]
        return self.join(system, turns)


def _plain(end: str) -> Callable[[str, Any], str]:
    """Turns that follow each other, each with an end."""

    def join(system: str, turns: Any, assistant: str = "") -> str:
        return system + "".join(begin + (text + end if text else "") for begin, text in turns)

    return join


def _colon(first: str, *ends: str, last: str = ":") -> Callable[[str, Any], str]:
    """Turns with a colon, whose ends alternate."""

    def join(system: str, turns: Any) -> str:
        parts = [system, first]
        for index, (begin, text) in enumerate(turns):
            parts.append(f"{begin}: {text}{ends[index % len(ends)]}" if text else begin + last)
        return "".join(parts)

    return join


def _lines(end: str) -> Callable[[str, Any], str]:
    """Turns on lines of their own."""

    def join(system: str, turns: Any) -> str:
        parts = [f"{system}{end}\n"] if system else []
        parts += [f"{begin}\n{text}{end}\n" if text else f"{begin}\n" for begin, text in turns]
        return "".join(parts)

    return join


def _with_answer(join: Callable[[str, Any], str], assistant: str) -> Callable[[str, Any], str]:
    """Opens the turn of the assistant at the end."""
    return lambda system, turns: join(system, [*turns, (assistant, None)])


def _llama2(system: str, turns: Any) -> str:
    parts = [system, " "]
    for index, (begin, text) in enumerate(turns):
        end = " </s>"[1:] if index % 2 else " "
        if system and index == 0:
            parts.append((text or "") + end)
        elif text:
            parts.append(f"{begin}{text} {end}")
        else:
            parts.append(f"{begin} ")
    return "".join(parts) + "[/INST]"


def _mistral(system: str, turns: Any) -> str:
    parts = []
    for begin, text in turns:
        if text is not None:
            parts.append(f"[INST] {text}" if begin == "user" else f" [/INST]{text}</s>")
    return "".join(parts) + " [/INST]"


def _glm(system: str, turns: Any) -> str:
    return system + "".join(f"{begin}\n {text}" if text else begin for begin, text in turns)


def _saiga(system: str, turns: Any) -> str:
    turns = [("system", system), *turns] if system else turns
    parts = [f"<s>{begin}\n{text}</s>" if text else f"<s>{begin}\n" for begin, text in turns]
    return ("".join(parts) + "<s>bot").strip()


def _style(function: str, user: str, assistant: str, join: Callable[[str, Any], str], **rest: Any) -> Style:
    return Style(function, user, assistant, _with_answer(join, assistant), **rest)


_LLAMA3 = ("<|start_header_id|>user<|end_header_id|>\n\n", "<|start_header_id|>assistant<|end_header_id|>\n\n")
_BUDDY = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions."
)

STYLES: dict[str, Style] = {
    "llama-2": Style("llama2", "<s>[INST]", "[/INST]", _llama2, "[INST] <<SYS>>\n{}\n<</SYS>>", optional_system=True),
    "llama-3": _style(
        "llama3",
        *_LLAMA3,
        _plain("<|eot_id|>"),
        stop="<|eot_id|>",
        system="<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>",
        optional_system=True,
    ),
    "alpaca": Style("alpaca", "### Instruction", "### Response", _colon("\n\n", "\n\n", "</s>")),
    "qwen": _style(
        "qwen",
        "<|im_start|>user",
        "<|im_start|>assistant",
        _lines("<|im_end|>"),
        system="<|im_start|>system\n{}",
        default="You are a helpful assistant.",
        stop="<|endoftext|>",
    ),
    "vicuna": _style("vicuna", "USER", "ASSISTANT", _colon(" ", " ", "</s>"), system=_BUDDY),
    "oasst_llama": _style(
        "oasst_llama", "<|prompter|>", "<|assistant|>", _plain("</s>"), system="[INST] <<SYS>>\n{}\n<</SYS>>\n\n"
    ),
    "baichuan-2": _style("baichuan2", "<reserved_106>", "<reserved_107>", _plain("")),
    "baichuan": _style("baichuan", "<reserved_102>", "<reserved_103>", _plain("")),
    "openbuddy": _style(
        "openbuddy",
        "User",
        "Assistant",
        _colon("\n", "\n"),
        default=(
            "You are Buddy, a helpful and honest assistant, and talk with a human. You explain why if a question makes no "
            "sense, and say so if you do not know the answer.\n"
        ),
    ),
    "open-orca": _style(
        "open_orca",
        "User",
        "Assistant",
        _colon("<|end_of_turn|>\n", "<|end_of_turn|>\n", last=": "),
        stop="User",
        default=(
            "You are a helpful assistant. Answer truthfully, think step by step, and say so if you notice a mistake or do "
            "not know something."
        ),
    ),
    "redpajama-incite": _style("redpajama_incite", "<human>", "<bot>", _colon("\n", "\n"), stop="<human>"),
    "snoozy": _style(
        "snoozy",
        "### Prompt",
        "### Response",
        _colon("\n", "\n"),
        stop="###",
        default=(
            "The prompt below is a question to answer, a task to complete, or a conversation to respond to; decide which "
            "and write an appropriate response."
        ),
    ),
    "phind": _style(
        "phind",
        "### User Message",
        "### Assistant",
        _colon("\n\n", "\n\n"),
        system="### System Prompt\nYou are an intelligent programming assistant.",
    ),
    "intel": _style("intel", "### User:", "### Assistant:", _colon("\n", "\n"), system="### System:\n{}"),
    "mistrallite": _style("mistrallite", "<|prompter|>", "</s>\n<|assistant|>", _plain(" "), system="<|system|>{}</s>"),
    "zephyr": _style("zephyr", "<|user|>\n", "<|assistant|>\n", _lines("</s>"), system="<|system|>\n{}", stop="</s>"),
    "pygmalion": _style("pygmalion", "<|user|>", "<|model|>", _lines("\n"), system="<|system|>{}", stop="\n"),
    "chatml": _style(
        "chatml",
        "<|im_start|>user",
        "<|im_start|>assistant",
        _lines("<|im_end|>"),
        system="<|im_start|>system\n{}",
        stop="<|im_end|>",
    ),
    "mistral-instruct": Style("mistral_instruct", "user", "assistant", _mistral, stop="</s>"),
    "chatglm3": _style("chatglm3", "<|user|>", "<|assistant|>", _glm, system="<|system|>\n{}", stop="</s>"),
    "openchat": _style(
        "openchat",
        "GPT4 Correct User: ",
        "<|end_of_turn|>GPT4 Correct Assistant: ",
        _lines("<|end_of_turn|>"),
        system="{}<|end_of_turn|>",
        stop="<|end_of_turn|>",
    ),
    "saiga": Style("saiga", "user", "bot", _saiga),
    "gemma": _style(
        "gemma",
        "<start_of_turn>user\n",
        "<start_of_turn>model\n",
        _plain("<end_of_turn>\n"),
        system="",
        stop="<end_of_turn>\n",
    ),
}
