"""Completions: answers as they come, and the dictionaries that they become."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from .. import _log, _oxidize

if TYPE_CHECKING:
    from .llama_types import CompletionLogprobs, CreateCompletionResponse


class Piece(NamedTuple):
    """A token of an answer and the text that became final with it."""

    token: int
    text: str
    logprob: Optional[float]
    top: list[tuple[int, float]]


class Run:
    """An answer while it is made: an iterator, and the end once it was read."""

    finish_reason = "length"
    n_tokens = 0

    def __iter__(self) -> Iterator[Piece]:
        raise NotImplementedError

    def rest(self) -> list[Piece]:
        """The whole answer."""
        return list(self)

    def prompt_logprobs(self) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
        """Log probabilities of the prompt's tokens, if they were asked for."""
        return []

    def close(self) -> None:
        """Ends the answer."""


class EngineRun(Run):
    """An answer of the engine."""

    def __init__(self, stream: _oxidize.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Piece]:
        try:
            while (token := self._stream.next()) is not None:
                yield Piece(*token)
            self._end()
        finally:
            _log.drain()

    def rest(self) -> list[Piece]:
        try:
            # Does not wake this thread for each token, unlike the iterator.
            pieces = [Piece(*token) for token in self._stream.collect()]
            self._end()
            return pieces
        finally:
            _log.drain()

    def _end(self) -> None:
        end = self._stream.completion()
        if end is not None:
            self.finish_reason, self.n_tokens = end["finish_reason"], end["completion_tokens"]
            _log.logger.debug(
                "%d prompt tokens (%d cached) in %.3f s, %d tokens in %.3f s",
                end["prompt_tokens"],
                end["cached_tokens"],
                end["prompt_time"],
                end["completion_tokens"],
                end["generation_time"],
            )

    def prompt_logprobs(self) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
        return self._stream.prompt_logprobs()

    def close(self) -> None:
        self._stream.cancel()


class TokenRun(Run):
    """An answer whose text is made in Python: of tokens, and of log probabilities where they were asked for."""

    def __init__(
        self,
        tokens: Iterator[tuple[int, float | None, list[tuple[int, float]]]],
        *,
        is_end: Callable[[int], bool],
        detokenize: Callable[[list[int]], bytes],
        stop: list[str],
        max_tokens: int,
        stream: _oxidize.Stream | None = None,
    ) -> None:
        self._tokens = tokens
        self._is_end = is_end
        self._text = TextAssembler(detokenize, stop)
        self._max_tokens = max_tokens
        self._stream = stream
        self.token_ids: list[int] = []

    def __iter__(self) -> Iterator[Piece]:
        # Stopping criteria end the iterator.
        self.finish_reason = "stop"
        try:
            for token, logprob, top in self._tokens:
                if self._is_end(token):
                    break
                self.token_ids.append(token)
                self.n_tokens += 1
                text = self._text.push(token)
                full = self.n_tokens >= self._max_tokens and not self._text.stopped
                if full:
                    text += self._text.finish()
                yield Piece(token, text, logprob, top)
                if full:
                    self.finish_reason = "length"
                    return
                if self._text.stopped:
                    return
            rest = self._text.finish()
            if rest:
                yield Piece(self.token_ids[-1] if self.token_ids else 0, rest, None, [])
        finally:
            self.close()

    def prompt_logprobs(self) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
        return [] if self._stream is None else self._stream.prompt_logprobs()

    def close(self) -> None:
        close = getattr(self._tokens, "close", None)
        if close is not None:
            close()


class TextAssembler:
    """Text of tokens that come one by one: holds back what may be part of a character or of a stop string."""

    def __init__(self, detokenize: Callable[[list[int]], bytes], stop: list[str]) -> None:
        self._detokenize = detokenize
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that became final."""
        return self._release(self._decoder.decode(self._detokenize([token])))

    def finish(self) -> str:
        """The text that was held back."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _release(self, text: str) -> str:
        text = self._held + text
        found = [position for position in map(text.find, self._stop) if position >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        n_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class CompletionWriter:
    """Writes the dictionaries of one completion."""

    def __init__(
        self,
        run: Run,
        *,
        prompt: str | list[int],
        prompt_tokens: list[int],
        model: str,
        logprobs: int | None,
        echo: bool,
        token_text: Callable[[int], str],
        bos: int,
        suffix: str | None = None,
    ) -> None:
        self.id = f"cmpl-{uuid.uuid4()}"
        self._created = int(time.time())
        self._run = run
        self._prompt = prompt
        self._prompt_tokens = prompt_tokens
        self._model = model
        self._logprobs = logprobs
        self._echo = echo
        self._token_text = token_text
        self._bos = bos

    def whole(self) -> CreateCompletionResponse:
        """The whole completion."""
        pieces = self._run.rest()
        text = "".join(piece.text for piece in pieces)
        if self._echo:
            text = self._prompt_text() + text
        completion = self._dictionary(text, self._scores(pieces), self._run.finish_reason)
        n_prompt, n_answer = len(self._prompt_tokens), self._run.n_tokens
        completion["usage"] = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_answer,
            "total_tokens": n_prompt + n_answer,
        }
        return completion

    def chunks(self) -> Iterator[CreateCompletionResponse]:
        """The completion in pieces."""
        offset = len(self._prompt)
        try:
            for piece in self._run:
                scores = None
                if self._logprobs is not None and piece.logprob is not None:
                    scores = self._table([(piece.token, piece.logprob, piece.top)], offset)
                    offset += len(self._token_text(piece.token))
                elif not piece.text:
                    continue
                yield self._dictionary(piece.text, scores, None)
            yield self._dictionary("", None, self._run.finish_reason)
        finally:
            self._run.close()

    def _prompt_text(self) -> str:
        if isinstance(self._prompt, str):
            return self._prompt
        return "".join(map(self._token_text, self._prompt))

    def _scores(self, pieces: list[Piece]) -> CompletionLogprobs | None:
        if self._logprobs is None:
            return None
        tokens: list[tuple[int, float | None, list[tuple[int, float]]]] = []
        tokens.extend((piece.token, piece.logprob, piece.top) for piece in pieces if piece.logprob is not None)
        if not self._echo:
            return self._table(tokens, len(self._prompt))
        echoed = [token for token in self._run.prompt_logprobs() if token[0] != self._bos]
        table = self._table(echoed + tokens, 0)
        # OpenAI has no scores of the first token.
        if table["tokens"]:
            table["token_logprobs"][0] = table["top_logprobs"][0] = None
        return table

    def _table(
        self, tokens: Iterable[tuple[int, float | None, list[tuple[int, float]]]], offset: int
    ) -> CompletionLogprobs:
        table: CompletionLogprobs = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for token, logprob, top in tokens:
            text = self._token_text(token)
            table["tokens"].append(text)
            table["text_offset"].append(offset)
            table["token_logprobs"].append(logprob)
            likely = {self._token_text(other): value for other, value in top[: self._logprobs]}
            if logprob is not None:
                likely[text] = logprob
            table["top_logprobs"].append(likely)
            offset += len(text)
        return table

    def _dictionary(
        self, text: str, logprobs: CompletionLogprobs | None, finish_reason: str | None
    ) -> CreateCompletionResponse:
        choice: Any = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
        }
