"""Sampling settings, and sampling step by step for programs that look at the logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _oxidize

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .llama_grammar import LlamaGrammar

Processor = Callable[["npt.NDArray[np.intc]", "npt.NDArray[np.single]"], "npt.NDArray[np.single]"]


def sampling_settings(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    tfs_z: float,
    repeat_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
    mirostat_mode: int,
    mirostat_tau: float,
    mirostat_eta: float,
    last_n: int,
    seed: int | None,
    logit_bias: Mapping[Any, float] | None = None,
) -> _oxidize.SamplingSettings:
    """Settings for the engine, in llama-cpp-python's order of stages.

    A temperature below 0 draws from the whole distribution. Numbers that turn a stage off, such as a top-p above 1,
    turn it off here, too.
    """
    stages = "penalties;top_k;tfs_z;typ_p;top_p;min_p;temperature"
    if temperature < 0:
        stages, temperature = "penalties", 1.0
    bias = None
    if logit_bias:
        bias = [(_checked("logit_bias", int(token), 2**32), float(value)) for token, value in logit_bias.items()]
    return {
        "temperature": temperature,
        "top_k": _checked("top_k", max(int(top_k), 0), 2**31),
        "top_p": _at_most_one(top_p),
        "min_p": 0.0 if min_p < 0 else min_p,
        "typical_p": _at_most_one(typical_p),
        "tfs_z": _at_most_one(tfs_z),
        "repeat_penalty": repeat_penalty,
        "repeat_last_n": min(last_n, 2**31 - 1),
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "mirostat_mode": _checked("mirostat_mode", mirostat_mode, 2**31),
        "mirostat_tau": mirostat_tau,
        "mirostat_eta": mirostat_eta,
        "samplers": stages,
        "seed": None if seed is None else seed % 2**64,
        "logit_bias": bias,
    }


def _checked(name: str, value: int, limit: int) -> int:
    """The value, or a ValueError if the engine's type cannot hold it."""
    if not 0 <= value < limit:
        raise ValueError(f"{name} {value} is out of range; it must be at least 0 and less than {limit}")
    return value


def _at_most_one(value: float) -> float:
    return 1.0 if value > 1.0 else value


class LogitsHook:
    """Processors and stopping criteria, as the engine calls them before each token of a request."""

    def __init__(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        processors: Sequence[Processor] | None,
        criteria: Callable[[npt.NDArray[np.intc], npt.NDArray[np.single]], bool] | None,
    ) -> None:
        import numpy as np

        self._input_ids: npt.NDArray[np.intc] = np.zeros((len(prompt) + max_tokens,), dtype=np.intc)
        self._input_ids[: len(prompt)] = prompt
        self._n_tokens = len(prompt)
        self._processors = list(processors or ())
        self._criteria = criteria

    def __call__(self, fresh: Sequence[int], logits: npt.NDArray[np.single]) -> npt.NDArray[np.single] | None:
        """The logits that the processors make of ``logits``; None to end the answer.

        ``fresh`` are the tokens since the last call.
        """
        end = self._n_tokens + len(fresh)
        self._input_ids[self._n_tokens : end] = fresh
        self._n_tokens = end
        input_ids = self._input_ids[:end]
        logits = processed(self._processors, input_ids, logits)
        ends = self._criteria is not None and self._criteria(input_ids, logits)
        return None if ends else logits


def processed(
    processors: Sequence[Processor], input_ids: npt.NDArray[np.intc], logits: npt.NDArray[np.single]
) -> npt.NDArray[np.single]:
    """The logits after all processors, which may write to ``logits``."""
    if not processors:
        return logits
    import numpy as np

    shape = logits.shape
    for processor in processors:
        logits = processor(input_ids, logits)
    logits = np.ascontiguousarray(logits, dtype=np.single)
    if logits.shape != shape:
        raise ValueError(f"a logits processor returned shape {logits.shape}; {shape} is expected")
    return logits


class TokenSampler:
    """Chooses one token after the other from logits, after Python's processors."""

    def __init__(
        self,
        model: _oxidize.Model,
        settings: _oxidize.SamplingSettings,
        grammar: LlamaGrammar | None,
        processors: Sequence[Processor] | None,
    ) -> None:
        self._sampler = _oxidize.Sampler(model, settings)
        self._constraint = None
        if grammar is not None:
            self._constraint = _oxidize.Constraint(model, grammar._kind, grammar._grammar)
        self._processors = list(processors or ())

    def accept(self, tokens: Sequence[int]) -> None:
        """Counts tokens for the penalties."""
        self._sampler.accept([int(token) for token in tokens])

    @property
    def is_complete(self) -> bool:
        """True if the grammar allows nothing more."""
        return self._constraint is not None and self._constraint.is_complete

    def sample(self, input_ids: npt.NDArray[np.intc], logits: npt.NDArray[np.single]) -> int:
        """The next token. ``logits`` stay as they are."""
        if self._processors:
            logits = processed(self._processors, input_ids, logits.copy())
        token = self._sampler.sample(logits, self._constraint)
        self._sampler.accept([token])
        if self._constraint is not None and self._constraint.allows(token):
            self._constraint.accept(token)
        return token


def log_probabilities(logits: npt.NDArray[np.single], token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
    """The log probability of a token, and the most likely tokens with theirs."""
    import numpy as np

    shifted = logits.astype(np.float64) - float(np.max(logits))
    scores = shifted - np.log(np.sum(np.exp(shifted)))
    n_top = min(n_top, len(scores))
    best = np.argsort(-scores, kind="stable")[:n_top]
    return float(scores[token]), [(int(index), float(scores[index])) for index in best]
