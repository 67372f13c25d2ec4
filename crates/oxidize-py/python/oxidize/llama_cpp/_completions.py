"""Prompts, seeds and the choice between the engine and Python's steps: the part of ``Llama`` below completions."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from .. import _oxidize
from ._completion import CompletionWriter, EngineRun, Run, TokenRun
from ._evaluation import Evaluation
from ._sampling import LogitsHook, log_probabilities, sampling_settings
from ._state import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from .llama_speculative import LlamaPromptLookupDecoding
from .llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .llama_cache import BaseLlamaCache
    from .llama_grammar import LlamaGrammar

# A token, its log probability and the most likely ones.
_Scored = Tuple[int, Optional[float], List[Tuple[int, float]]]

# Methods that programs replace on a Llama; completions then go through them.
_STEPS = ("generate", "eval", "sample", "reset")


class Completions(Evaluation):
    """Starts answers, in the engine or step by step."""

    model_path: str
    spm_infill: bool
    cache: BaseLlamaCache | None
    tokenizer_: BaseLlamaTokenizer
    _n_vocab: int
    _seed_lock: threading.Lock

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this model is closed")

    def _running_engine(self) -> _oxidize.Engine:
        raise NotImplementedError

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The tokens of a text in UTF-8."""
        return self.tokenizer_.tokenize(text, add_bos, special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """The bytes of tokens that follow ``prev_tokens``."""
        return self.tokenizer_.detokenize(tokens, prev_tokens=prev_tokens, special=special)

    def _token_text(self, token: int) -> str:
        return self.detokenize([token]).decode("utf-8", errors="ignore")

    def _next_seed(self, seed: int | None) -> int:
        """The seed of a request; where none is given, the next one that the last one yields."""
        with self._seed_lock:
            if seed is None:
                seed = random.Random(self._seed).randint(0, 2**32)
            self._seed = seed
            return seed

    def _prompt_tokens(self, prompt: str | list[int], suffix: str | None) -> list[int]:
        model = self._model
        if suffix is not None:
            text = prompt if isinstance(prompt, str) else self.detokenize(prompt).decode("utf-8", "ignore")
            tokens = model.native_tokenizer.infill(text, suffix, self.spm_infill)
            if tokens is None:
                raise ValueError("this model has no tokens for a suffix: it cannot fill in the middle")
            return tokens
        if not isinstance(prompt, str):
            tokens = [int(token) for token in prompt]
            outside = next((token for token in tokens if not 0 <= token < self._n_vocab), None)
            if outside is not None:
                raise ValueError(f"prompt token {outside} is out of range; the vocabulary has {self._n_vocab} tokens")
            return tokens
        first = model.token_cls() if model.token_cls() != -1 else model.token_bos()
        last = model.token_sep() if model.token_sep() != -1 else model.token_eos()
        tokens = self.tokenize(prompt.encode("utf-8"), add_bos=False, special=True) if prompt else []
        if model.add_bos_token() and first != -1:
            tokens = [first, *tokens]
        if (model.add_eos_token() or model.token_sep() != -1) and last != -1:
            tokens = [*tokens, last]
        if tokens[:2] == [model.token_bos()] * 2:
            warnings.warn(
                f'Detected duplicate leading "{model.token_get_text(model.token_bos())}" in prompt, this will likely '
                "reduce response quality, consider removing it...",
                RuntimeWarning,
                stacklevel=4,
            )
        # The answer to nothing begins like any text.
        return tokens or [token for token in (model.token_bos(), model.token_eos()) if token != -1][:1]

    def _goes_by_steps(self) -> bool:
        """True if completions go through ``generate``, because a program has replaced a step or needs the state."""
        replaced = any(
            name in self.__dict__ or getattr(type(self), name) is not getattr(Evaluation, name) for name in _STEPS
        )
        custom_draft = self.draft_model is not None and not isinstance(self.draft_model, LlamaPromptLookupDecoding)
        return replaced or custom_draft or bool(self.cache)

    def _run(
        self,
        tokens: list[int],
        settings: dict[str, Any],
        *,
        max_tokens: int,
        stop: list[str],
        seed: int,
        n_probs: int | None,
        echo: bool,
        logit_bias: dict[Any, float] | None,
        logits_processor: Sequence[LogitsProcessor] | None,
        stopping_criteria: StoppingCriteriaList | None,
        grammar: LlamaGrammar | None,
        render_special: bool = False,
    ) -> Run:
        """Starts an answer."""
        own_text = not isinstance(self.tokenizer_, LlamaTokenizer)

        def run(answer: Iterator[_Scored], stream: _oxidize.Stream | None = None) -> Run:
            return TokenRun(
                answer,
                is_end=self._model.native_tokenizer.is_end,
                detokenize=lambda ids: self.detokenize(ids, prev_tokens=tokens),
                stop=stop,
                max_tokens=max_tokens,
                stream=stream,
            )

        if self._goes_by_steps():
            return run(
                self._by_steps(tokens, settings, n_probs, logit_bias, logits_processor, stopping_criteria, grammar)
            )
        sampling = sampling_settings(last_n=self.last_n_tokens_size, seed=seed, logit_bias=logit_bias, **settings)
        hook = None
        if logits_processor or stopping_criteria:
            hook = LogitsHook(tokens, max_tokens, logits_processor, stopping_criteria or None)
        # The engine does not know the text of another tokenizer.
        sampling["stop"] = [] if own_text else stop
        sampling["n_probs"] = n_probs
        stream = self._running_engine().submit(
            tokens,
            {
                "max_tokens": max_tokens,
                "sampling": sampling,
                "grammar": None if grammar is None else (grammar._kind, grammar._grammar),
                "prompt_logprobs": n_probs if echo else None,
                "render_special": render_special,
                "processor": hook,
            },
        )
        return run(_tokens_of(stream), stream) if own_text else EngineRun(stream)

    def _by_steps(
        self,
        tokens: list[int],
        settings: dict[str, Any],
        n_probs: int | None,
        logit_bias: dict[Any, float] | None,
        logits_processor: Sequence[LogitsProcessor] | None,
        stopping_criteria: StoppingCriteriaList | None,
        grammar: LlamaGrammar | None,
    ) -> Iterator[_Scored]:
        """Tokens of ``generate``, which a program may have replaced, and their log probabilities."""
        if self.cache:
            self._load_cached(tokens)
        processors = LogitsProcessorList(logits_processor or ())
        if logit_bias:
            processors.append(_bias(logit_bias))
        settings = dict(settings, temp=settings["temperature"])
        del settings["temperature"]
        answer: list[int] = []
        generated = self.generate(
            tokens,
            logits_processor=processors or None,
            stopping_criteria=stopping_criteria,
            grammar=grammar,
            **settings,
        )
        try:
            for token in generated:
                answer.append(token)
                if n_probs is None or self._logits is None:
                    yield token, None, []
                else:
                    yield token, *log_probabilities(self._logits[-1], token, n_probs)
        finally:
            generated.close()
            if self.cache and not self._closed:
                self.cache[tokens + answer] = self.save_state()

    def _load_cached(self, tokens: list[int]) -> None:
        assert self.cache is not None
        try:
            state = self.cache[tokens]
        except KeyError:
            return
        cached = self.longest_token_prefix(state.input_ids[: state.n_tokens].tolist(), tokens)
        if cached > self.longest_token_prefix(self._input_ids.tolist(), tokens):
            self.load_state(state)

    def _begin(
        self,
        prompt: str | list[int],
        settings: dict[str, Any],
        *,
        suffix: str | None = None,
        max_tokens: int | None,
        logprobs: int | None,
        echo: bool = False,
        stop: str | list[str] | None,
        seed: int | None,
        model: str | None,
        stopping_criteria: StoppingCriteriaList | None,
        logits_processor: Sequence[LogitsProcessor] | None,
        grammar: LlamaGrammar | None,
        logit_bias: dict[Any, float] | None,
        render_special: bool = False,
    ) -> CompletionWriter:
        """Starts a completion."""
        self._check_open()
        tokens = self._prompt_tokens(prompt, suffix)
        room = self._n_ctx - len(tokens)
        if room <= 0:
            raise ValueError(f"Requested tokens ({len(tokens)}) exceed context window of {self._n_ctx}")
        max_tokens = room if max_tokens is None or max_tokens <= 0 else min(max_tokens, room)
        stops = [stop] if isinstance(stop, str) else stop or []
        run = self._run(
            tokens,
            settings,
            max_tokens=max_tokens,
            stop=[text for text in stops if text],
            seed=self._next_seed(seed),
            n_probs=logprobs,
            echo=echo,
            logit_bias=logit_bias,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            grammar=grammar,
            render_special=render_special,
        )
        return CompletionWriter(
            run,
            prompt=prompt,
            prompt_tokens=tokens,
            model=model if model is not None else self.model_path,
            logprobs=logprobs,
            echo=echo,
            token_text=self._token_text,
            bos=self._model.token_bos(),
        )


def _tokens_of(stream: _oxidize.Stream) -> Iterator[_Scored]:
    """Tokens of the engine and their log probabilities."""
    try:
        while (item := stream.next()) is not None:
            yield item[0], item[2], item[3]
    finally:
        stream.cancel()


def _bias(logit_bias: dict[Any, float]) -> LogitsProcessor:
    def add(input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        scores = scores.copy()
        for token, bias in logit_bias.items():
            scores[int(token)] += float(bias)
        return scores

    return add
