"""Functionary's formats, and the grammars that llama-cpp-python names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from oxidize import Llama, LlamaGrammar, _oxidize
from oxidize.llama_cpp import llama_chat_format as formats
from oxidize.llama_cpp import llama_grammar as grammars
from oxidize.llama_cpp._functionary import Dialect, DialectV1, DialectV2, declarations

WEATHER = {
    "name": "weather",
    "description": "The weather of a day.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city."},
            "days": {"type": "array", "items": {"$ref": "#/$defs/Day"}},
            "unit": {"enum": ["C", "F"]},
            "place": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
        "required": ["city"],
        "$defs": {"Day": {"type": "string"}},
    },
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


def test_functions_are_declared_in_typescript() -> None:
    text = declarations([WEATHER])
    assert text.splitlines()[1:] == [
        "namespace functions {",
        "",
        "type Day = string;",
        "// The weather of a day.",
        "type weather = (_: {",
        "// Name of the city.",
        "city: string,",
        "days?: Array<Day>,",
        'unit?: "C" | "F",',
        "place?: {",
        "    x: number,",
        "  },",
        "}) => any;",
        "",
        "} // namespace functions",
    ]


TURNS: Any = [
    ("user", "Oslo?", []),
    ("assistant", None, [("weather", '{"city": "Oslo"}')]),
    ("function weather", "rain", []),
]


@pytest.mark.parametrize(
    ("dialect", "prompt", "answer"),
    [
        (
            Dialect(),
            'user:\n</s>Oslo?</s>\nassistant to=functions.weather:\n{"city": "Oslo"}</s>\n'
            "function name=functions.weather:\nrain\nassistant",
            ' to=functions.weather:\n{"city": "Rome"}',
        ),
        (
            DialectV1(),
            'user:\nOslo?<|END_OF_USER|>\nassistant:\n<|START_OF_FUNCTION_CALL|>weather:\n{"city": "Oslo"}'
            "<|END_OF_FUNCTION_CALL|><|END_OF_ASSISTANT|>\n"
            "function name=weather:\nrain<|END_OF_FUNCTION_RESULT|>\nassistant:\n",
            '<|START_OF_FUNCTION_CALL|>weather:\n{"city": "Rome"}<|END_OF_FUNCTION_CALL|>',
        ),
        (
            DialectV2(),
            "<|from|>user\n<|recipient|>all\n<|content|>Oslo?\n"
            '<|from|>assistant\n<|recipient|>weather\n<|content|>{"city": "Oslo"}<|stop|>\n'
            "<|from|>weather\n<|recipient|>all\n<|content|>rain\n<|from|>assistant\n<|recipient|>",
            'weather\n<|content|>{"city": "Rome"}',
        ),
    ],
)
def test_prompts_and_answers_of_functionary(dialect: Any, prompt: str, answer: str) -> None:
    assert dialect.prompt(TURNS) == prompt
    assert dialect.parse(answer) == ("", [("weather", '{"city": "Rome"}')])
    assert dialect.parse(dialect.text + "It rains.") == ("It rains.", [])


def test_version_2_may_write_text_and_several_calls() -> None:
    again = "\n<|from|>assistant\n<|recipient|>"
    text, calls = DialectV2().parse(f"all\n<|content|>Let me see.{again}a\n<|content|>{{}}{again}b\n<|content|>[]")
    assert text == "Let me see." and calls == [("a", "{}"), ("b", "[]")]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("functionary", ' to=functions.weather:\n{"city": "Oslo"}</s>'),
        ("functionary-v2", 'weather\n<|content|>{"city": "Oslo"}<|stop|>'),
    ],
)
def test_functionary_calls_tools(smol: Llama, name: str, written: str) -> None:
    # The model is not one of the family: a logits processor writes the answer.
    tokens = [*smol.tokenize(written.encode(), add_bos=False, special=True), smol.token_eos()]
    begin: list[int] = []

    def write(input_ids: Any, scores: Any) -> Any:
        begin.append(len(input_ids))
        scores[:] = float("-inf")
        scores[tokens[len(input_ids) - begin[0]]] = 0.0
        return scores

    handler = formats.get_chat_completion_handler(name)
    ask: Any = {"llama": smol, "messages": [{"role": "user", "content": "Weather in Oslo?"}], "max_tokens": 60}
    answer: Any = handler(**ask, tools=TOOLS, logits_processor=[write])
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    begin.clear()
    chunks: Any = list(handler(**ask, tools=TOOLS, logits_processor=[write], stream=True))  # type: ignore[arg-type]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    # A function that is not offered is no call.
    begin.clear()
    other = [{"type": "function", "function": {"name": "time", "parameters": CITY}}]
    text: Any = handler(**ask, tools=other, logits_processor=[write])
    assert "weather" in text["choices"][0]["message"]["content"]
    forced: Any = handler(**ask, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    arguments = forced["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(arguments)["city"], str)
    plain: Any = handler(**ask)
    assert plain["choices"][0]["message"]["role"] == "assistant"
    with pytest.raises(ValueError, match="Unsupported role"):
        handler(llama=smol, messages=[{"role": "nobody", "content": "x"}])


def accepts(llm: Llama, grammar: str, text: str) -> bool:
    """True if the grammar allows the text, and an end after it."""
    constraint = _oxidize.Constraint(llm._model.require(), "gbnf", grammar)
    # A byte at a time, as no particular division into tokens is right.
    for character in text:
        for token in llm.tokenize(character.encode(), add_bos=False):
            if not constraint.allows(token):
                return False
            constraint.accept(token)
    return constraint.is_complete or constraint.allows(llm.token_eos())


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("JSON_GBNF", ['{"a": [1, -2.5e3, true, null], "b": {"c": "\\n\\u00e9"}}', "{}"], ["[1]", '{"a": 01}', "{a: 1}"]),
        ("JSON_ARR_GBNF", ["[]", '[{"a": "b"}, 2]'], ["{}", "[1"]),
        ("LIST_GBNF", ["- one\n- two\n"], ["one\n", "- one"]),
        ("ARITHMETIC_GBNF", ["(1 + x) * 2 = 3\n", "a/b=-1.5\n1 = 1\n"], ["1 +\n", "2 = \n"]),
        ("CHESS_GBNF", ["1. e4 e5\n2. Nf3 Nc6\n3. O-O Qxd8+\n", "1. d4 exd5\n10. b8=Q#\n"], ["1. e9 e5\n", "e4 e5\n"]),
        ("ENGLISH_GBNF", ["Well, it's (mostly) fine!"], ["Grüße", "日本"]),
        ("JAPANESE_GBNF", ["こんにちは、世界。", "カタカナ"], ["hello", "Ü"]),
        (
            "C_GBNF",
            ['int main(int argc) {\n  int x = 1;\n  while (x < 10) { x = x + f(2, "a\\n"); }\n  // end\n  return x;\n}'],
            ["int main( {", "x = 1;"],
        ),
    ],
)
def test_named_grammars(smol: Llama, name: str, good: list[str], bad: list[str]) -> None:
    grammar = getattr(grammars, name)
    for text in good:
        assert accepts(smol, grammar, text), text
    for text in bad:
        assert not accepts(smol, grammar, text), text
    options: Any = {"max_tokens": 12, "temperature": 0, "grammar": LlamaGrammar.from_string(grammar)}
    assert smol("Here it is:\n", **options)["choices"][0]["text"]  # type: ignore[index]
