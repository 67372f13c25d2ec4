"""``Engine``: batches of prompts, async streams and arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _log, _oxidize
from ._request import RequestOptions
from ._waiter import TokenWaiter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self


@dataclass(frozen=True)
class Token:
    """A token of an answer."""

    id: int
    text: str
    logprob: float | None
    top: list[tuple[int, float]]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its tokens, and how it came about."""

    text: str
    tokens: list[Token]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    parsed: Any = None

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        speed = len(self.tokens) / self.seconds if self.seconds > 0 else 0.0
        return f"{self.text}\n\n*{len(self.tokens)} tokens, {speed:.1f}/s, {self.finish_reason}*"


class Engine:
    """A model that answers many prompts at once.

    A prompt is a text to continue, a list of tokens, or a list of chat messages.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_parallel: int = 32,
        n_threads: int | None = None,
        n_batch: int = 512,
        cache_tokens: int | None = None,
        type_k: str | None = None,
        type_v: str | None = None,
        deterministic: bool = False,
        lora: Iterable[tuple[str, float]] = (),
    ) -> None:
        """Loads a GGUF file or a directory of safetensors.

        ``n_ctx`` None is the model's own, as far as memory allows. ``deterministic`` makes answers independent of the
        requests beside them, which is slower.
        """
        _log.listen()
        _oxidize.check_processor()
        self.path = os.fspath(model)
        self._model: _oxidize.Model | None = _oxidize.Model(self.path, adapters=list(lora))
        self._tokenizer = self._model.tokenizer()
        self._n_threads = n_threads
        self._settings: _oxidize.EngineSettings = {
            "n_ctx": n_ctx,
            "n_batch": n_batch,
            "n_parallel": n_parallel,
            "n_threads": n_threads,
            "cache_tokens": cache_tokens,
            "type_k": type_k,
            "type_v": type_v,
            "deterministic": deterministic,
        }
        self._engine: _oxidize.Engine | None = None
        if self._model.generates_text:
            self._engine = _oxidize.Engine(self._model, self._settings)
        self._embedders: dict[tuple[int, bool], _oxidize.Embedder] = {}
        self._lock = threading.Lock()
        self._waiter: TokenWaiter | None = None
        _log.drain()

    # Facts.

    @property
    def n_ctx(self) -> int:
        """Maximum tokens of a prompt and its answer."""
        return self._engine.n_ctx if self._engine is not None else self._open_model().n_ctx_train

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""
        return self._open_model().n_vocab

    @property
    def metadata(self) -> dict[str, str]:
        """Keys and values of the model file; arrays are left out."""
        return dict(self._open_model().metadata())

    @property
    def tokenizer(self) -> _oxidize.Tokenizer:
        """The tokenizer."""
        return self._tokenizer

    def __repr__(self) -> str:
        if self._model is None:
            return f"Engine({self.path!r}, closed)"
        return f"Engine({self.path!r}, {self._model.architecture}, n_ctx={self.n_ctx})"

    def _repr_html_(self) -> str:
        from ._notebook import model_table, table

        if self._model is None:
            return table({"model": self.path, "state": "closed"})
        return model_table(self.path, self._model, self.n_ctx)

    # Text and tokens.

    def tokenize(self, text: str, *, special: bool = False, add_special: bool = False) -> list[int]:
        """The tokens of a text."""
        return self._tokenizer.encode(text.encode("utf-8"), add_special, special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; bytes that are no characters are replaced."""
        return self._tokenizer.decode(list(tokens), special).decode("utf-8", errors="replace")

    # Answers.

    def generate(
        self,
        prompts: Any,
        *,
        max_tokens: int | None = None,
        schema: Any = None,
        grammar: str | None = None,
        regex: str | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        tools: Sequence[Any] | None = None,
        progress: bool = False,
        **sampling: Any,
    ) -> Any:
        """Answers a prompt, or each of a list of prompts, in one batch: an :class:`Answer`, or a list of them.

        ``schema`` is a JSON schema, as a dictionary or a pydantic model; then ``parsed`` has the object. Sampling
        settings (``temperature=0.7, seed=1``) replace the model's own.
        """
        single = _is_prompt(prompts)
        options = RequestOptions(max_tokens, schema, grammar, regex, stop, logprobs, tools, sampling)
        work = [prompts] if single else list(prompts)
        start = time.perf_counter()
        running = [self._submit(prompt, options) for prompt in work]
        answers = []
        bar = _ProgressBar(len(work)) if progress else None
        try:
            for stream in running:
                tokens = [Token(*token) for token in stream.collect()]
                answers.append(_answer(stream, tokens, options, time.perf_counter() - start))
                if bar is not None:
                    bar.advance(len(tokens))
        except BaseException:
            for stream in running:
                stream.cancel()
            raise
        finally:
            if bar is not None:
                bar.close()
            _log.drain()
        return answers[0] if single else answers

    def stream(
        self,
        prompt: Any,
        *,
        max_tokens: int | None = None,
        schema: Any = None,
        grammar: str | None = None,
        regex: str | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        tools: Sequence[Any] | None = None,
        **sampling: Any,
    ) -> TokenStream:
        """Answers a prompt token by token: ``for token in stream``, or ``async for token in stream``."""
        options = RequestOptions(max_tokens, schema, grammar, regex, stop, logprobs, tools, sampling)
        return TokenStream(self, self._submit(prompt, options), options)

    async def agenerate(self, prompt: Any, **options: Any) -> Answer:
        """Answers a prompt without blocking the event loop."""
        stream = self.stream(prompt, **options)
        async for _ in stream:
            pass
        return stream.answer()

    def _submit(self, prompt: Any, options: RequestOptions) -> _oxidize.Stream:
        if self._engine is None:
            self._open_model()
            raise ValueError("this model computes embeddings, not text")
        settings = options.settings(self._open_model())
        return self._engine.submit(self._prompt_tokens(prompt, options), settings)

    def _prompt_tokens(self, prompt: Any, options: RequestOptions) -> list[int]:
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt.encode("utf-8"), True, False)
        prompt = list(prompt)
        if prompt and isinstance(prompt[0], Mapping):
            conversation = {"messages": prompt, "tools": None if options.tools is None else list(options.tools)}
            return self._open_model().render(json.dumps(conversation))[1]
        return [int(token) for token in prompt]

    # Numbers.

    def embed(
        self, texts: str | Sequence[str], *, normalize: bool = True, pooling: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Embeddings: a vector for a text, a matrix with a row for each of several."""
        import numpy as np

        kinds = {"mean": 1, "cls": 2, "last": 3}
        if pooling is not None and pooling not in kinds:
            raise ValueError(f"pooling {pooling!r}; mean, cls and last are supported")
        kind = kinds[pooling] if pooling is not None else self._open_model().pooling or kinds["mean"]
        many = [texts] if isinstance(texts, str) else list(texts)
        tokens = [self._tokenizer.encode(text.encode("utf-8"), True, False) for text in many]
        with self._lock:
            embedder = self._embedders.get((kind, normalize))
            if embedder is None:
                n_ctx = min(self.n_ctx, self._open_model().n_ctx_train)
                embedder = _oxidize.Embedder(self._open_model(), n_ctx, 512, self._n_threads, kind, normalize)
                self._embedders[kind, normalize] = embedder
        vectors = [rows[0] for rows in embedder.embed(tokens)] if tokens else []
        matrix = np.asarray(vectors, dtype=np.float32)
        return matrix[0] if isinstance(texts, str) else matrix

    def logits(self, prompt: Any) -> npt.NDArray[np.float32]:
        """The logits after each token of a prompt: a row for each, in memory that nothing else uses.

        ``torch.from_dlpack(engine.logits(...))`` is a tensor in the same memory.
        """
        return self._rows(prompt, hidden=False)

    def hidden_states(self, prompt: Any) -> npt.NDArray[np.float32]:
        """The hidden states after the last layer: a row for each token."""
        return self._rows(prompt, hidden=True)

    def _rows(self, prompt: Any, *, hidden: bool) -> npt.NDArray[np.float32]:
        tokens = self._prompt_tokens(prompt, RequestOptions())
        session = _oxidize.Session(self._open_model(), len(tokens), self._n_threads, hidden)
        try:
            return session.decode(tokens, 0, len(tokens))
        finally:
            session.close()

    # Measurements and files.

    def bench(self, *, prompt_tokens: int = 512, answer_tokens: int = 128, parallel: int = 1) -> dict[str, float]:
        """Speeds in tokens per second: of prompts, and of generation by all parallel answers together."""
        length = max(min(prompt_tokens, self.n_ctx - answer_tokens - 1), 1)
        prompt = [(index * 7919) % self.n_vocab for index in range(length)]
        options = RequestOptions(answer_tokens, sampling={"temperature": 0.0}, ignore_eos=True)
        if self._engine is None:
            raise ValueError("this model computes embeddings, not text")
        settings = options.settings(self._open_model())
        start = time.perf_counter()
        streams = [self._engine.submit([*prompt[:-1], index % self.n_vocab], settings) for index in range(parallel)]
        for stream in streams:
            stream.collect()
        wall = time.perf_counter() - start
        ends = [end for end in (stream.completion() for stream in streams) if end is not None]
        computed = sum(end["prompt_tokens"] - end["cached_tokens"] for end in ends)
        generated = sum(end["completion_tokens"] for end in ends)
        prompt_time = max((end["prompt_time"] for end in ends), default=0.0)
        generation_time = max((end["generation_time"] for end in ends), default=0.0)
        return {
            "prompt_tokens_per_second": computed / prompt_time if prompt_time > 0 else 0.0,
            "generated_tokens_per_second": (generated - len(ends)) / generation_time if generation_time > 0 else 0.0,
            "seconds": wall,
        }

    def perplexity(
        self, file: str | os.PathLike[str], *, chunks: int | None = None, n_ctx: int | None = None
    ) -> dict[str, Any]:
        """The perplexity of the model on a text file, as ``oxidize perplexity`` computes it."""
        arguments = ["perplexity", "-m", self.path, "-f", os.fspath(file), "--json"]
        arguments += [] if chunks is None else ["--chunks", str(chunks)]
        arguments += [] if n_ctx is None else ["-c", str(n_ctx)]
        report: dict[str, Any] = json.loads(_command(arguments))
        return report

    @staticmethod
    def quantize(source: str | os.PathLike[str], target: str | os.PathLike[str], type: str = "Q4_K_M") -> None:
        """Quantizes a model, as ``oxidize quantize`` does."""
        _command(["quantize", os.fspath(source), os.fspath(target), type])

    @staticmethod
    def convert(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Converts a model to GGUF or to a directory of safetensors, as ``oxidize convert`` does."""
        _command(["convert", os.fspath(source), os.fspath(target)])

    # Life.

    def _open_model(self) -> _oxidize.Model:
        if self._model is None:
            raise RuntimeError("this model is closed")
        return self._model

    def _ready(self) -> TokenWaiter:
        with self._lock:
            if self._waiter is None:
                self._waiter = TokenWaiter()
            return self._waiter

    def close(self) -> None:
        """Gives the memory back at once. Answers that are still read end with a RuntimeError."""
        engine, self._engine, self._model = getattr(self, "_engine", None), None, None
        if engine is not None:
            engine.close()
        for embedder in getattr(self, "_embedders", {}).values():
            embedder.close()
        waiter = getattr(self, "_waiter", None)
        if waiter is not None:
            waiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class TokenStream:
    """The tokens of an answer, for ``for`` and ``async for``. Leaving the loop ends the request."""

    def __init__(self, engine: Engine, stream: _oxidize.Stream, options: RequestOptions) -> None:
        self._engine = engine
        self._stream = stream
        self._options = options
        self._tokens: list[Token] = []
        self._start = time.perf_counter()

    def __iter__(self) -> Iterator[Token]:
        ended = False
        try:
            while (item := self._stream.next()) is not None:
                yield self._keep(item)
            ended = True
        finally:
            if not ended:
                self._stream.cancel()

    def __aiter__(self) -> AsyncIterator[Token]:
        return self._async_tokens()

    async def _async_tokens(self) -> AsyncIterator[Token]:
        waiter = self._engine._ready()
        ended = False
        try:
            async for item in waiter.items(self._stream):
                yield self._keep(item)
            ended = True
        finally:
            if not ended:
                self._stream.cancel()

    def _keep(self, item: Any) -> Token:
        token = Token(*item)
        self._tokens.append(token)
        return token

    def answer(self) -> Answer:
        """The answer, once all tokens were read."""
        return _answer(self._stream, self._tokens, self._options, time.perf_counter() - self._start)

    def cancel(self) -> None:
        """Ends the request."""
        self._stream.cancel()


def _is_prompt(prompts: Any) -> bool:
    """True for one prompt, false for a list of them."""
    if isinstance(prompts, str):
        return True
    first = next(iter(prompts), None) if isinstance(prompts, Sequence) else None
    return isinstance(first, Mapping) or (hasattr(first, "__index__") and not isinstance(first, str))


def _answer(stream: _oxidize.Stream, tokens: list[Token], options: RequestOptions, seconds: float) -> Answer:
    end = stream.completion()
    if end is None:
        raise RuntimeError("the answer is not complete")
    text = "".join(token.text for token in tokens)
    complete = options.parser is not None and end["finish_reason"] == "stop"
    return Answer(
        text=text,
        tokens=list(tokens),
        finish_reason=end["finish_reason"],
        prompt_tokens=end["prompt_tokens"],
        cached_tokens=end["cached_tokens"],
        seconds=seconds,
        parsed=options.parser(text) if complete and options.parser is not None else None,
    )


class _ProgressBar:
    """Progress on stderr, or in the notebook if tqdm is there."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._tokens = total, 0, 0
        self._start = time.perf_counter()
        try:
            from tqdm.auto import tqdm

            self._bar: Any = tqdm(total=total, unit="prompt")
        except ImportError:
            self._bar = None

    def advance(self, n_tokens: int) -> None:
        """Counts a finished answer."""
        self._done += 1
        self._tokens += n_tokens
        speed = self._tokens / max(time.perf_counter() - self._start, 1e-9)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{speed:.1f} tokens/s")
            self._bar.update()
        else:
            sys.stderr.write(f"\r{self._done}/{self._total} prompts, {speed:.1f} tokens/s")
            sys.stderr.flush()

    def close(self) -> None:
        """Ends the line."""
        if self._bar is not None:
            self._bar.close()
        else:
            sys.stderr.write("\n")


def _command(arguments: list[str]) -> str:
    """Output of the oxidize command, in a process of its own; its error as an exception."""
    done = subprocess.run([sys.executable, "-m", "oxidize", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"oxidize {arguments[0]} ended with status {done.returncode}")
    return done.stdout
