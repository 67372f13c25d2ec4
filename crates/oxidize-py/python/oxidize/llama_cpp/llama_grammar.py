"""Grammars that constrain answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ._grammars import (
    ARITHMETIC_GBNF,
    C_GBNF,
    CHESS_GBNF,
    ENGLISH_GBNF,
    JAPANESE_GBNF,
    JSON_ARR_GBNF,
    JSON_GBNF,
    LIST_GBNF,
)

__all__ = [
    "ARITHMETIC_GBNF",
    "CHESS_GBNF",
    "C_GBNF",
    "ENGLISH_GBNF",
    "JAPANESE_GBNF",
    "JSON_ARR_GBNF",
    "JSON_GBNF",
    "LIST_GBNF",
    "LLAMA_GRAMMAR_DEFAULT_ROOT",
    "LlamaGrammar",
]

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"

def declared_only(schema: Any) -> Any:
    """A schema whose objects have no other properties than those they declare, unless it says so.

    llama.cpp reads schemas so; by the standard, any others are allowed, and small models never stop writing them.
    """
    if isinstance(schema, list):
        return [declared_only(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: declared_only(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object":
        combines = any(key in schema for key in ("allOf", "anyOf", "oneOf", "$ref", "patternProperties"))
        if not combines:
            closed.setdefault("additionalProperties", False)
    return closed


class LlamaGrammar:
    """A grammar: GBNF, a JSON schema, a regular expression or Lark."""

    def __init__(self, *args: Any, _grammar: str, _kind: str = "gbnf", **kwargs: Any) -> None:
        self._grammar = _grammar
        self._root = LLAMA_GRAMMAR_DEFAULT_ROOT
        self._kind = _kind

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar in GBNF."""
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar in GBNF from a file."""
        try:
            grammar = Path(file).read_text(encoding="utf-8")
        except Exception as error:
            raise Exception(f"from_file: error reading grammar file: {error}") from error
        if not grammar:
            raise ValueError("from_file: error parsing grammar file: params_grammer is empty")
        return cls.from_string(grammar, verbose=verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar of JSON that matches a schema."""
        schema = declared_only(json.loads(json_schema))
        return cls(_grammar=json.dumps(schema), _kind="json_schema")

    @classmethod
    def from_regex(cls, regex: str) -> LlamaGrammar:
        """A grammar of the texts that a regular expression matches as a whole."""
        return cls(_grammar=regex, _kind="regex")

    @classmethod
    def from_lark(cls, grammar: str) -> LlamaGrammar:
        """A grammar in llguidance's dialect of Lark."""
        return cls(_grammar=grammar, _kind="lark")

    def reset(self) -> None:
        """Does nothing: every answer starts at the beginning of its grammar."""
