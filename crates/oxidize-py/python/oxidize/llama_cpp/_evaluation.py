"""Evaluation step by step: the part of ``Llama`` whose tokens, logits and state Python reads and writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _log
from ._internals import LlamaModel
from ._internals import Sequence as EvaluatedSequence
from ._sampling import Processor, TokenSampler, sampling_settings
from ._state import LlamaState

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ._state import StoppingCriteriaList
    from .llama_grammar import LlamaGrammar
    from .llama_speculative import LlamaDraftModel

class Evaluation:
    """Tokens, logits and state of one sequence, and the methods that work on them."""

    _model: LlamaModel
    _logits_all: bool
    _seed: int
    _closed = True
    last_n_tokens_size: int
    n_batch: int
    draft_model: LlamaDraftModel | None

    def _init_evaluation(self, n_ctx: int, n_threads: int | None) -> None:
        self.n_tokens = 0
        self._n_ctx = n_ctx
        self._sequence_threads = n_threads
        # Restored or truncated state must be evaluated before sampling.
        self._requires_eval = True
        self._sequence: EvaluatedSequence | None = None
        self._sampler: TokenSampler | None = None
        # Logits that `eval` keeps: more than one where drafts are verified.
        self._n_outputs = 1
        self._logits: npt.NDArray[np.single] | None = None
        self._input_ids_array: npt.NDArray[np.intc] | None = None
        self._scores_array: npt.NDArray[np.single] | None = None

    # Arrays, made when they are first used: scores of a large vocabulary take half a gigabyte.

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """The tokens; the first ``n_tokens`` count."""
        if self._input_ids_array is None:
            import numpy as np

            self._input_ids_array = np.zeros((self._n_ctx,), dtype=np.intc)
        return self._input_ids_array

    @input_ids.setter
    def input_ids(self, value: npt.NDArray[np.intc]) -> None:
        self._input_ids_array = value

    @property
    def scores(self) -> npt.NDArray[np.single]:
        """Logits after each token with ``logits_all``, else of the last evaluations."""
        if self._scores_array is None:
            import numpy as np

            n_rows = self._n_ctx if self._logits_all else self.n_batch
            scores: npt.NDArray[np.single] = np.zeros((n_rows, self._model.n_vocab()), dtype=np.single)
            logits = self._logits
            if logits is not None and 0 < self.n_tokens <= n_rows:
                n_kept = min(len(logits), self.n_tokens)
                scores[self.n_tokens - n_kept : self.n_tokens] = logits[-n_kept:]
            self._scores_array = scores
        return self._scores_array

    @scores.setter
    def scores(self, value: npt.NDArray[np.single]) -> None:
        self._scores_array = value

    @property
    def _input_ids(self) -> npt.NDArray[np.intc]:
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> npt.NDArray[np.single]:
        return self.scores[: self.n_tokens, :]

    @property
    def eval_tokens(self) -> deque[int]:
        """The tokens."""
        return deque(self._input_ids.tolist(), maxlen=self._n_ctx)

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The logits."""
        return deque(self._scores.tolist(), maxlen=self._n_ctx if self._logits_all else 1)

    # Sequences.

    def _own_sequence(self) -> EvaluatedSequence:
        """The sequence of ``eval``."""
        if self._sequence is None:
            self._sequence = EvaluatedSequence(self._model.require(), self._n_ctx, self._sequence_threads)
        return self._sequence

    def _close_evaluation(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
            self._sequence = None
        self._logits = None

    # The public methods.

    def set_seed(self, seed: int) -> None:
        """Sets the seed from which those of later answers are drawn."""
        self._seed = seed

    def reset(self) -> None:
        """Forgets all tokens."""
        self.n_tokens = 0
        self._requires_eval = True

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluates tokens after those before."""
        tokens = [int(token) for token in tokens]
        if not tokens:
            return
        if self.n_tokens + len(tokens) > self._n_ctx:
            raise ValueError(f"Requested tokens ({self.n_tokens + len(tokens)}) exceed context window of {self._n_ctx}")
        start = self.n_tokens
        before = self._input_ids.tolist()
        n_outputs = len(tokens) if self._logits_all else min(self._n_outputs, len(tokens))
        self._logits = self._own_sequence().evaluate(before + tokens, n_outputs)
        self.n_tokens += len(tokens)
        self.input_ids[start : self.n_tokens] = tokens
        if self._logits_all:
            self.scores[start : self.n_tokens, :] = self._logits
        elif self._scores_array is not None and self.n_tokens <= len(self._scores_array):
            self._scores_array[self.n_tokens - n_outputs : self.n_tokens, :] = self._logits
        self._requires_eval = False
        _log.drain()

    def _logits_at(self, index: int | None) -> npt.NDArray[np.single]:
        """Logits after the token at ``index``, the last one if None."""
        back = 1 if index is None else self.n_tokens - index
        if self._logits is not None and 0 < back <= len(self._logits):
            row: npt.NDArray[np.single] = self._logits[-back]
            return row
        raise ValueError(f"there are no logits at {index}: only {self.n_tokens} tokens were evaluated")

    def _token_sampler(
        self,
        *,
        temp: float,
        logits_processor: Sequence[Processor] | None,
        grammar: LlamaGrammar | None,
        **settings: Any,
    ) -> TokenSampler:
        settings.pop("penalize_nl", None)
        chosen = sampling_settings(temperature=temp, last_n=self.last_n_tokens_size, seed=self._seed, **settings)
        return TokenSampler(self._model.require(), chosen, grammar, logits_processor)

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Sequence[Processor] | None = None,
        grammar: LlamaGrammar | None = None,
        idx: int | None = None,
    ) -> int:
        """Samples the token after the last one, or after the one at ``idx``."""
        if self.n_tokens <= 0:
            raise AssertionError("nothing was evaluated")
        sampler = self._sampler or self._token_sampler(
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            temp=temp,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            tfs_z=tfs_z,
            mirostat_mode=mirostat_mode,
            mirostat_eta=mirostat_eta,
            mirostat_tau=mirostat_tau,
            logits_processor=logits_processor,
            grammar=grammar,
        )
        n_before = self.n_tokens if idx is None else idx + 1
        return sampler.sample(self.input_ids[:n_before], self._logits_at(idx))

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Sequence[Processor] | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        grammar: LlamaGrammar | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """The tokens that follow, without end. Tokens that are sent are drafts, kept as far as they come true."""
        settings: dict[str, Any] = {
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "temp": temp,
            "repeat_penalty": repeat_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "tfs_z": tfs_z,
            "mirostat_mode": mirostat_mode,
            "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta,
            "penalize_nl": penalize_nl,
            "logits_processor": logits_processor,
            "grammar": grammar,
        }
        pending = [int(token) for token in tokens]
        self._sampler = self._token_sampler(**settings)
        self._sampler.accept(pending)
        if reset:
            pending = self._reuse_prefix(pending)
        next_index = self.n_tokens + len(pending) - 1
        while True:
            self._n_outputs = max(self.n_tokens + len(pending) - next_index, 1)
            try:
                self.eval(pending)
            finally:
                self._n_outputs = 1
            while next_index < self.n_tokens:
                token = self.sample(idx=next_index, **settings)
                next_index += 1
                if stopping_criteria is not None and stopping_criteria(
                    self.input_ids[:next_index], self._logits_at(next_index - 1)
                ):
                    return
                sent = yield token
                pending = [token, *(sent or ())]
                if next_index < self.n_tokens and token != self.input_ids[next_index]:
                    # A draft token that was not confirmed.
                    self.n_tokens = next_index
                    self._requires_eval = True
                    break
            if self.draft_model is not None:
                # Only what is still to be evaluated: confirmed drafts are in the sequence.
                end = self.n_tokens + len(pending)
                self.input_ids[self.n_tokens : end] = pending
                draft = self.draft_model(self.input_ids[:end])
                pending += [int(token) for token in draft[: self._n_ctx - end]]

    def _reuse_prefix(self, tokens: list[int]) -> list[int]:
        """Keeps the beginning that equals that of ``tokens``; what is left to evaluate."""
        common = self.longest_token_prefix(self._input_ids.tolist(), tokens)
        consumed = common == len(tokens)
        if consumed and common == self.n_tokens and not self._requires_eval and common > 0:
            return []
        # Something must be evaluated to have logits.
        keep = common - 1 if consumed else common
        if keep <= 0:
            self.reset()
            return tokens
        self.n_tokens = keep
        self._requires_eval = True
        return tokens[keep:]

    def save_state(self) -> LlamaState:
        """The tokens, logits and cache."""
        tokens = self._input_ids.tolist()
        sequence = self._own_sequence()
        if tokens and sequence.tokens != tokens:
            # Evaluated already, but by an assignment to input_ids, or truncated.
            self._logits = sequence.evaluate(tokens, 1)
        state = sequence.save() if tokens else b""
        n_scores = self.n_tokens if self._scores_array is not None else 0
        return LlamaState(
            scores=self.scores[:n_scores, :].copy() if n_scores else _no_scores(self._model.n_vocab()),
            input_ids=self.input_ids.copy(),
            n_tokens=self.n_tokens,
            llama_state=state,
            llama_state_size=len(state),
            seed=self._seed,
        )

    def load_state(self, state: LlamaState) -> None:
        """Restores what ``save_state`` returned."""
        tokens = state.input_ids[: state.n_tokens].tolist()
        if len(tokens) > self._n_ctx:
            raise RuntimeError("Failed to set llama state data")
        sequence = self._own_sequence()
        if tokens:
            sequence.load(state.llama_state, tokens)
        else:
            sequence.truncate(0)
        self.input_ids[: state.n_tokens] = tokens
        if len(state.scores):
            n_rows = min(len(state.scores), len(self.scores))
            self.scores[:n_rows, :] = state.scores[:n_rows]
        self.n_tokens = state.n_tokens
        self._requires_eval = True
        self._seed = state.seed

    @staticmethod
    def logits_to_logprobs(logits: npt.NDArray[np.single] | list[Any], axis: int = -1) -> npt.NDArray[np.single]:
        """The logarithms of the probabilities."""
        import numpy as np

        values = np.asarray(logits, dtype=np.single)
        largest = np.amax(values, axis=axis, keepdims=True)
        largest = np.where(np.isfinite(largest), largest, 0)
        shifted = values - largest
        with np.errstate(divide="ignore"):
            result: npt.NDArray[np.single] = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
        return result

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Number of tokens that two sequences have in common at their beginning."""
        length = 0
        for x, y in zip(a, b):
            if x != y:
                break
            length += 1
        return length


def _no_scores(n_vocab: int) -> npt.NDArray[np.single]:
    import numpy as np

    return np.zeros((0, n_vocab), dtype=np.single)
