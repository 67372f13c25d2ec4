"""Functions that change logits or end answers, and the state of a ``Llama``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LogitsProcessor = Callable[["npt.NDArray[np.intc]", "npt.NDArray[np.single]"], "npt.NDArray[np.single]"]
StoppingCriteria = Callable[["npt.NDArray[np.intc]", "npt.NDArray[np.single]"], bool]


class LogitsProcessorList(List[LogitsProcessor]):
    """Functions that change logits, one after the other."""

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(List[StoppingCriteria]):
    """Functions that end an answer, if one returns true."""

    def __call__(self, input_ids: npt.NDArray[np.intc], logits: npt.NDArray[np.single]) -> bool:
        return any([criterion(input_ids, logits) for criterion in self])


class MinTokensLogitsProcessor:
    """Forbids the end of an answer before it has a minimum of tokens."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = float("-inf")
        return scores


class LlamaState:
    """Tokens, logits and cache of a ``Llama``."""

    def __init__(
        self,
        input_ids: npt.NDArray[np.intc],
        scores: npt.NDArray[np.single],
        n_tokens: int,
        llama_state: bytes,
        llama_state_size: int,
        seed: int,
    ) -> None:
        self.input_ids = input_ids
        self.scores = scores
        self.n_tokens = n_tokens
        self.llama_state = llama_state
        self.llama_state_size = llama_state_size
        self.seed = seed
