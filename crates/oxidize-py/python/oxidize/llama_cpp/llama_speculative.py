"""Draft models, which propose tokens that the model verifies."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LlamaDraftModel(abc.ABC):
    """Proposes the tokens that follow."""

    @abc.abstractmethod
    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]: ...


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """Proposes what followed earlier occurrences of the last tokens.

    ``Llama`` leaves it to the engine, which does the same without Python.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: npt.NDArray[np.intc], max_ngram_size: int, num_pred_tokens: int
    ) -> npt.NDArray[np.intc]:
        """The tokens after the first occurrence of the longest n-gram that ends the text."""
        import numpy as np

        length = input_ids.shape[0]
        for size in range(min(max_ngram_size, length - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(input_ids, (size,))
            starts = np.nonzero(np.all(windows == input_ids[-size:], axis=1))[0] + size
            for start in starts[starts < length]:
                return input_ids[start : min(start + num_pred_tokens, length)]
        return np.array([], dtype=np.intc)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)
