"""What a request of an ``Engine`` asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import _oxidize

_SAMPLING = frozenset(
    (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "tfs_z",
        "repeat_penalty",
        "repeat_last_n",
        "frequency_penalty",
        "presence_penalty",
        "mirostat_mode",
        "mirostat_tau",
        "mirostat_eta",
        "logit_bias",
        "seed",
        "samplers",
        "stop_tokens",
        "min_tokens",
    )
)


class RequestOptions:
    """What a request asks for."""

    def __init__(
        self,
        max_tokens: int | None = None,
        schema: Any = None,
        grammar: str | None = None,
        regex: str | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        tools: Sequence[Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        ignore_eos: bool = False,
    ) -> None:
        unknown = set(sampling or ()) - _SAMPLING
        if unknown:
            raise TypeError(f"unknown setting {sorted(unknown)[0]!r}; known are {', '.join(sorted(_SAMPLING))}")
        if sum(given is not None for given in (schema, grammar, regex)) > 1:
            raise ValueError("schema, grammar and regex exclude each other: an answer has one form")
        self.max_tokens = max_tokens
        self.parser = getattr(schema, "model_validate_json", None) or (json.loads if schema is not None else None)
        self.tools = tools
        self._grammar: tuple[str, str] | None = None
        if schema is not None:
            as_schema = getattr(schema, "model_json_schema", None)
            self._grammar = ("json_schema", json.dumps(as_schema() if as_schema is not None else schema))
        elif grammar is not None:
            self._grammar = ("gbnf", grammar)
        elif regex is not None:
            self._grammar = ("regex", regex)
        self._stop = [stop] if isinstance(stop, str) else list(stop)
        self._logprobs = logprobs
        self._sampling = dict(sampling or {})
        self._ignore_eos = ignore_eos

    def settings(self, model: _oxidize.Model) -> _oxidize.RequestSettings:
        """The request for a model, whose authors' settings are the defaults."""
        sampling: Any = {"temperature": None, **json.loads(model.sampling_defaults()), **self._sampling}
        bias = sampling.get("logit_bias")
        if isinstance(bias, Mapping):
            sampling["logit_bias"] = [(int(token), float(value)) for token, value in bias.items()]
        sampling["stop"] = self._stop
        sampling["n_probs"] = self._logprobs
        return {
            "max_tokens": self.max_tokens,
            "grammar": self._grammar,
            "sampling": sampling,
            "ignore_eos": self._ignore_eos,
        }
