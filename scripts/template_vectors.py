#!/usr/bin/env python3
"""Render every chat template of the test cache with Jinja2, configured like Hugging Face's
apply_chat_template, and write the results as test vectors.

    scripts/template_vectors.py [CACHE]                  needs: jinja2
    scripts/template_vectors.py --refresh FILE.json …

Reads CACHE/templates/*.jinja, writes CACHE/vectors/templates/NAME.json.
CACHE is $OXIDIZE_TEST_CACHE or ~/.cache/oxidize by default.
With --refresh, renders the sources and conversations of existing vector files again, in place.
"""

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.fromtimestamp(1_700_000_000, timezone.utc)


class Generation(Extension):
    """The {% generation %} block, which only marks the assistant's text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, identifier="abc123456"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a place.\nSecond line with \"quotes\" & <tags>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City, e.g. Zürich"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                    "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14.5},
                    "flags": {"type": "array", "items": {"type": "string"}},
                    "place": {
                        "type": "object",
                        "description": "Exact place",
                        "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                        "required": ["lat", "lon"],
                    },
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]

ARGUMENTS = {"city": "Zürich", "days": 3, "exact": True, "none": None, "x": 0.5, "list": ["a", 1]}
SYSTEM = message("system", "You are terse.\n\nAnswer in one line.")
HELLO = [message("user", "Hello, who are you? "), message("assistant", "A model."), message("user", "Ünïcode 🦀 'quotes' \"double\" <b>&</b>")]


def tool_turn(arguments, **more):
    return [
        message("user", "Weather in Zürich?"),
        message("assistant", more.pop("content", ""), tool_calls=[call("get_weather", arguments)], **more),
        message("tool", '{"temperature": 21.5}', tool_call_id="abc123456", name="get_weather"),
    ]


CASES = {
    "user": dict(messages=HELLO[:1], add_generation_prompt=True),
    "turns": dict(messages=HELLO, add_generation_prompt=True),
    "system": dict(messages=[SYSTEM, *HELLO], add_generation_prompt=True),
    "no_generation_prompt": dict(messages=[SYSTEM, *HELLO[:2]], add_generation_prompt=False),
    "developer": dict(messages=[message("developer", "Obey."), *HELLO], add_generation_prompt=True),
    "tools": dict(messages=[SYSTEM, *HELLO], tools=TOOLS, add_generation_prompt=True),
    "tools_without_system": dict(messages=HELLO, tools=TOOLS, add_generation_prompt=True),
    "tool_result": dict(messages=[SYSTEM, *tool_turn(ARGUMENTS)], tools=TOOLS, add_generation_prompt=True),
    "tool_result_text_arguments": dict(
        messages=[SYSTEM, *tool_turn(json.dumps(ARGUMENTS))], tools=TOOLS, add_generation_prompt=True
    ),
    "tool_result_null_content": dict(
        messages=tool_turn(ARGUMENTS, content=None), tools=TOOLS, add_generation_prompt=True
    ),
    "tool_call_with_content": dict(
        messages=[*tool_turn(ARGUMENTS, content="Let me look."), message("assistant", "21.5 degrees."), message("user", "Thanks")],
        tools=TOOLS,
        add_generation_prompt=True,
    ),
    "tool_call_last": dict(messages=tool_turn(ARGUMENTS)[:2], tools=TOOLS, add_generation_prompt=False),
    "parallel_tool_calls": dict(
        messages=[
            message("user", "Weather and time?"),
            message("assistant", "", tool_calls=[call("get_weather", {"city": "Bern"}, "call00001"), call("now", {}, "call00002")]),
            message("tool", "rain", tool_call_id="call00001", name="get_weather"),
            message("tool", "12:00", tool_call_id="call00002", name="now"),
        ],
        tools=TOOLS,
        add_generation_prompt=True,
    ),
    "tool_reasoning": dict(
        messages=tool_turn(ARGUMENTS, reasoning_content="I need the weather."), tools=TOOLS, add_generation_prompt=True
    ),
    "reasoning": dict(
        messages=[HELLO[0], message("assistant", "A model.", reasoning_content="Who am I?\nA model."), HELLO[2]],
        add_generation_prompt=True,
    ),
    "reasoning_last": dict(
        messages=[HELLO[0], message("assistant", "A model.", reasoning_content="Who am I?")], add_generation_prompt=False
    ),
    "reasoning_in_content": dict(
        messages=[HELLO[0], message("assistant", "<think>\nWho?\n</think>\n\nA model."), HELLO[2]], add_generation_prompt=True
    ),
    "thinking_field": dict(
        messages=[HELLO[0], message("assistant", "A model.", thinking="Who am I?"), HELLO[2]], add_generation_prompt=True
    ),
    "thinking_on": dict(messages=[SYSTEM, *HELLO], add_generation_prompt=True, enable_thinking=True, thinking=True),
    "thinking_off": dict(messages=[SYSTEM, *HELLO], add_generation_prompt=True, enable_thinking=False, thinking=False),
    "effort": dict(messages=[SYSTEM, *HELLO], add_generation_prompt=True, reasoning_effort="high"),
    "parts": dict(
        messages=[message("user", [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}])],
        add_generation_prompt=True,
    ),
    "image": dict(
        messages=[message("user", [{"type": "text", "text": "See "}, {"type": "image"}, {"type": "text", "text": "?"}])],
        add_generation_prompt=True,
    ),
    "documents": dict(
        messages=HELLO[:1],
        documents=[{"title": "A", "text": "First."}, {"title": "B", "text": "Second."}],
        add_generation_prompt=True,
    ),
    "spaces": dict(
        messages=[message("system", "  padded \n"), message("user", "\n a \n"), message("assistant", " b "), message("user", "c")],
        add_generation_prompt=True,
    ),
    "two_users": dict(messages=[HELLO[0], HELLO[0]], add_generation_prompt=True),
    "assistant_first": dict(messages=[message("assistant", "Hi"), HELLO[0]], add_generation_prompt=True),
    "long": dict(messages=[SYSTEM, *(HELLO[:2] * 20), HELLO[2]], add_generation_prompt=True),
}


def render(env, source, variables):
    try:
        return {"expected": env.from_string(source).render(**variables)}
    except Exception as error:  # any exception means that the template rejects this conversation
        return {"error": f"{type(error).__name__}: {error}"}


def refresh(paths):
    env = environment()
    for path in map(Path, paths):
        vectors = json.loads(path.read_text(encoding="utf-8"))
        vectors["cases"] = [
            {"name": case["name"], "variables": case["variables"], **render(env, vectors["source"], case["variables"])}
            for case in vectors["cases"]
        ]
        path.write_text(json.dumps(vectors, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main():
    if sys.argv[1:2] == ["--refresh"]:
        return refresh(sys.argv[2:])
    default = os.environ.get("OXIDIZE_TEST_CACHE", Path.home() / ".cache" / "oxidize")
    cache = Path(sys.argv[1] if len(sys.argv) > 1 else default)
    templates = sorted((cache / "templates").glob("*.jinja"))
    if not templates:
        sys.exit(f"no templates in {cache / 'templates'}")
    target = cache / "vectors" / "templates"
    target.mkdir(parents=True, exist_ok=True)
    env = environment()
    for path in templates:
        source = path.read_text(encoding="utf-8")
        cases = []
        for name, case in CASES.items():
            variables = {"tools": None, "documents": None, "bos_token": "<bos>", "eos_token": "<eos>", **case}
            cases.append({"name": name, "variables": variables, **render(env, source, variables)})
        (target / f"{path.stem}.json").write_text(
            json.dumps({"source": source, "cases": cases}, ensure_ascii=False), encoding="utf-8"
        )
    print(f"{len(templates)} templates, {len(CASES)} conversations each, in {target}")


if __name__ == "__main__":
    main()
