"""Chat formats of the Functionary models, which see functions as declarations in TypeScript."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ._chat_answer import answer_chat

if TYPE_CHECKING:
    from .llama import Llama, StoppingCriteriaList

_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. The assistant calls functions with appropriate input when necessary"
)


class Dialect:
    """The first format: roles on lines of their own."""

    text = ":\n"
    stop: tuple[str, ...] = ("user:", "</s>")

    def header(self, name: str) -> str:
        """The beginning of an answer that calls a function."""
        return f" to=functions.{name}:\n"

    def prompt(self, messages: list[Any]) -> str:
        """The prompt of a conversation, up to what chooses between text and a call."""
        return "".join(self.turn(role, content, calls) for role, content, calls in messages) + "assistant"

    def turn(self, role: str, content: str | None, calls: list[tuple[str, str]]) -> str:
        """A message; ``role`` is ``function NAME`` for a result."""
        if role.startswith("function "):
            return f"function name=functions.{role[9:]}:\n{content or ''}\n"
        if role == "user":
            return f"user:\n</s>{content or ''}</s>\n"
        text = f"{role}:\n{content}\n" if content else ""
        return text + "".join(f"assistant{self.header(name)}{arguments}</s>\n" for name, arguments in calls)

    def parse(self, answer: str) -> tuple[str, list[tuple[str, str]]]:
        """Text and calls of an answer."""
        call = re.match(r"\s*to=functions\.([^\s:]+):\n?", answer)
        if call is not None:
            return "", [(call[1], answer[call.end() :].strip())]
        return answer.removeprefix(":").removeprefix("\n"), []


class DialectV1(Dialect):
    """Version 1: calls between control tokens, after the text."""

    text = ""
    stop = ("<|END_OF_ASSISTANT|>",)

    def header(self, name: str) -> str:
        return f"<|START_OF_FUNCTION_CALL|>{name}:\n"

    def prompt(self, messages: list[Any]) -> str:
        return super().prompt(messages) + ":\n"

    def turn(self, role: str, content: str | None, calls: list[tuple[str, str]]) -> str:
        if role.startswith("function "):
            return f"function name={role[9:]}:\n{content or ''}<|END_OF_FUNCTION_RESULT|>\n"
        text = content or ""
        text += "".join(f"{self.header(name)}{arguments}<|END_OF_FUNCTION_CALL|>" for name, arguments in calls)
        return f"{role}:\n{text}<|END_OF_{role.upper()}|>\n"

    def parse(self, answer: str) -> tuple[str, list[tuple[str, str]]]:
        text, *parts = answer.split("<|START_OF_FUNCTION_CALL|>")
        calls = []
        for part in parts:
            name, _, arguments = part.partition(":")
            calls.append((name.strip(), arguments.split("<|END_OF_FUNCTION_CALL|>")[0].strip()))
        return text.strip(), calls


class DialectV2(Dialect):
    """Version 2: every message has a sender and a recipient."""

    text = "all\n<|content|>"
    stop = ("<|stop|>",)
    _answer = "<|from|>assistant\n<|recipient|>"

    def header(self, name: str) -> str:
        return f"{name}\n<|content|>"

    def prompt(self, messages: list[Any]) -> str:
        return "".join(self.turn(role, content, calls) for role, content, calls in messages) + self._answer

    def turn(self, role: str, content: str | None, calls: list[tuple[str, str]]) -> str:
        if role != "assistant":
            return f"<|from|>{role.removeprefix('function ')}\n<|recipient|>all\n<|content|>{content or ''}\n"
        parts = [self._answer + self.text + content] if content is not None else []
        parts += [self._answer + self.header(name) + arguments for name, arguments in calls]
        return "\n".join(parts) + "<|stop|>\n"

    def parse(self, answer: str) -> tuple[str, list[tuple[str, str]]]:
        texts, calls = [], []
        for part in answer.split(self._answer):
            recipient, _, body = part.partition("<|content|>")
            if recipient.strip() in ("all", ""):
                texts.append(body.strip())
            else:
                calls.append((recipient.strip(), body.strip()))
        return "\n".join(texts), calls


class _Parser:
    """Calls in the answer to a prompt with functions, found once it is complete."""

    def __init__(self, dialect: Dialect, names: set[str]) -> None:
        self._dialect = dialect
        self._names = names
        self._answer = ""

    def push(self, text: str) -> str:
        """Nothing: an answer may still become a call."""
        self._answer += text
        return "[]"

    def finish(self) -> str:
        """The parts of the answer."""
        text, calls = self._dialect.parse(self._answer)
        if any(name not in self._names for name, _ in calls):
            # A function that does not exist is no call.
            text, calls = self._answer, []
        parts: list[Any] = [["content", text]] if text else []
        parts += [["tool_call", {"name": name, "arguments": arguments}] for name, arguments in calls]
        return json.dumps(parts)


def functionary(dialect: Dialect, llama: Llama, messages: list[Any], **arguments: Any) -> Any:
    """Answers a conversation in one of the formats."""

    def prompt(
        tools: list[Any] | None, forced: str | None, free: bool
    ) -> tuple[list[int], str, list[str], StoppingCriteriaList | None]:
        functions = [tool["function"] for tool in tools or []]
        text = dialect.prompt(_normalized(functions, messages))
        if forced is not None:
            text += dialect.header(forced)
        elif not free:
            text += dialect.text
        return llama.tokenize(text.encode("utf-8"), special=True), text, list(dialect.stop), None

    def recognizer(tools: list[Any], text: str) -> _Parser:
        return _Parser(dialect, {tool["function"]["name"] for tool in tools})

    return answer_chat(llama, prompt, recognizer, render_special=True, **arguments)


def _normalized(functions: list[Any], messages: list[Any]) -> list[tuple[str, str | None, list[tuple[str, str]]]]:
    """Role, text and calls of all messages, after those that introduce the functions."""
    turns: list[tuple[str, str | None, list[tuple[str, str]]]] = []
    if functions:
        turns.append(("system", declarations(functions), []))
    turns.append(("system", _SYSTEM, []))
    name_of: dict[str, str] = {}
    for message in messages:
        role, content = message["role"], message.get("content")
        calls = []
        for call in message.get("tool_calls") or []:
            name_of[call["id"]] = call["function"]["name"]
            calls.append((call["function"]["name"], call["function"]["arguments"]))
        if message.get("function_call") and not calls:
            calls.append((message["function_call"]["name"], message["function_call"]["arguments"]))
        if role in ("tool", "function"):
            identifier = message.get("tool_call_id", "")
            role = f"function {message.get('name') or name_of.get(identifier, identifier)}"
        elif role not in ("system", "user", "assistant"):
            raise ValueError(f"Unsupported role: {role}")
        turns.append((role, content, calls))
    return turns


def declarations(functions: list[Any]) -> str:
    """Functions as a namespace in TypeScript."""
    lines = ["// Supported function definitions that should be called when necessary.", "namespace functions {", ""]
    shared: dict[str, Any] = {}
    for function in functions:
        shared.update((function.get("parameters") or {}).get("$defs", {}))
    lines += [f"type {name} = {_type(schema, 0)};" for name, schema in shared.items()]
    for function in functions:
        parameters = function.get("parameters") or {}
        required = parameters.get("required", [])
        if function.get("description"):
            lines.append(f"// {function['description']}")
        lines.append(f"type {function['name']} = (_: {{")
        for name, schema in parameters.get("properties", {}).items():
            if schema.get("description"):
                lines.append(f"// {schema['description']}")
            lines.append(f"{name}{'' if name in required else '?'}: {_type(schema, 1)},")
        lines += ["}) => any;", ""]
    return "\n".join([*lines, "} // namespace functions"])


def _type(schema: Any, depth: int) -> str:
    """A JSON schema as a type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}, depth) for one in kind)
    if kind == "array":
        return f"Array<{_type(schema.get('items', {}), depth)}>"
    if kind == "object" and schema.get("properties"):
        indent = "  " * depth
        fields = [f"{indent}  {name}: {_type(part, depth + 1)},\n" for name, part in schema["properties"].items()]
        return "{\n" + "".join(fields) + indent + "}"
    return {"integer": "number"}.get(kind, str(kind))
