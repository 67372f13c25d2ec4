"""The objects behind ``Llama`` that some programs reach for: its model and its context."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .. import _oxidize
from . import _handles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .llama import Llama


def _id(token: int | None) -> int:
    return -1 if token is None else token


class LlamaModel:
    """A model and its vocabulary."""

    def __init__(self, native: _oxidize.Model | None, tokenizer: _oxidize.Tokenizer) -> None:
        self.native = native
        self.native_tokenizer = tokenizer
        self._vocab: int | None = None
        self._lock = threading.Lock()

    @property
    def vocab(self) -> int:
        """Handle of the vocabulary, for the functions of ``llama_cpp``."""
        with self._lock:
            if self._vocab is None:
                self._vocab = _oxidize.open_vocab(self.native_tokenizer)
            return self._vocab

    @property
    def model(self) -> int:
        """Handle of the model, which is that of its vocabulary."""
        return _handles.register_model(self)

    def close(self) -> None:
        """Gives the memory back."""
        with self._lock:
            vocab, self._vocab = self._vocab, None
        if vocab is not None:
            _handles.unregister_model(vocab)
            _oxidize.close_vocab(vocab)
        self.native = None

    def require(self) -> _oxidize.Model:
        """The model, unless it is closed or was never loaded."""
        if self.native is None:
            raise RuntimeError("this model is closed, or was opened with vocab_only=True")
        return self.native

    def n_vocab(self) -> int:
        return self.native.n_vocab if self.native is not None else self.native_tokenizer.n_vocab

    def n_ctx_train(self) -> int:
        return self.require().n_ctx_train

    def n_embd(self) -> int:
        return self.require().n_embd

    def n_params(self) -> int:
        return self.require().n_params

    def size(self) -> int:
        return self.require().n_bytes

    def metadata(self) -> dict[str, str]:
        return dict(self.native.metadata()) if self.native is not None else {}

    def token_bos(self) -> int:
        return _id(self.native_tokenizer.bos)

    def token_eos(self) -> int:
        return _id(self.native_tokenizer.eos)

    def token_eot(self) -> int:
        return _id(self.native_tokenizer.eot)

    def token_cls(self) -> int:
        return _id(self.native_tokenizer.cls)

    def token_sep(self) -> int:
        return _id(self.native_tokenizer.sep)

    def token_nl(self) -> int:
        return _id(self.native_tokenizer.newline)

    def add_bos_token(self) -> bool:
        return self.native_tokenizer.adds_bos

    def add_eos_token(self) -> bool:
        return self.native_tokenizer.adds_eos

    def token_get_text(self, token: int) -> str:
        return self.native_tokenizer.token_text(token) or ""

    def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        return self.native_tokenizer.encode(text, add_bos, special)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        if not special and self.native_tokenizer.is_special(token):
            return b""
        return self.native_tokenizer.piece(token) or b""

    def detokenize(self, tokens: list[int], special: bool = False) -> bytes:
        output = self.native_tokenizer.decode([int(token) for token in tokens], special)
        # The marker of a word at the beginning is no space of the text.
        begins = len(tokens) > 0 and tokens[0] == self.token_bos()
        return output[1:] if begins and output[:1] == b" " else output


class Sequence:
    """One sequence of tokens that were evaluated, and the logits of the last ones."""

    def __init__(self, model: _oxidize.Model, n_ctx: int, n_threads: int | None) -> None:
        self._session = _oxidize.Session(model, n_ctx, n_threads)
        self._is_recurrent = model.has_state
        self.tokens: list[int] = []

    def evaluate(self, tokens: list[int], n_outputs: int) -> npt.NDArray[np.float32]:
        """Makes ``tokens`` the sequence, and returns the logits after the last ``n_outputs`` of them.

        Evaluates what differs from the tokens before.
        """
        common = 0
        for ours, theirs in zip(self.tokens, tokens):
            if ours != theirs:
                break
            common += 1
        common = min(common, len(tokens) - n_outputs)
        if self._is_recurrent and common != len(self.tokens):
            common = 0
        fresh = tokens[common:]
        self.tokens = tokens[:common]
        rows = self._session.decode(fresh, common, n_outputs)
        self.tokens = list(tokens)
        return rows

    def save(self) -> bytes:
        """The state as bytes."""
        return self._session.save(len(self.tokens))

    def load(self, state: bytes, tokens: list[int]) -> None:
        """Restores a state; where its bytes do not fit, the tokens are evaluated again when needed."""
        self.tokens = list(tokens) if self._session.load(state, len(tokens)) else []

    def truncate(self, n_tokens: int) -> None:
        """Forgets the tokens from this position on."""
        if self._is_recurrent and n_tokens < len(self.tokens):
            n_tokens = 0
        del self.tokens[n_tokens:]

    def close(self) -> None:
        """Gives the memory back."""
        self._session.close()


class LlamaContext:
    """The context of a ``Llama``."""

    def __init__(self, llama: Llama) -> None:
        self._llama = llama

    @property
    def ctx(self) -> int | None:
        """Handle of the context, for the functions of ``llama_cpp``; None once it is closed."""
        return None if self._llama._closed else _handles.register_context(self._llama)

    def n_ctx(self) -> int:
        return self._llama.n_ctx()

    def pooling_type(self) -> int:
        return self._llama.pooling_type()

    def kv_cache_clear(self) -> None:
        self._llama._own_sequence().truncate(0)

    def kv_cache_seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        if p1 >= 0 and p1 < len(self._llama._own_sequence().tokens):
            return False
        self._llama._own_sequence().truncate(max(p0, 0))
        return True

    def reset_timings(self) -> None:
        """Does nothing: every answer has timings of its own."""

    def print_timings(self) -> None:
        """Does nothing: timings are in the log."""


class LlamaBatch:
    """The batch of a ``Llama``; it exists because programs look for it."""

    def __init__(self, *, n_tokens: int = 0, embd: int = 0, n_seq_max: int = 1, verbose: bool = True, **_: Any) -> None:
        self._n_tokens = n_tokens

    def n_tokens(self) -> int:
        return 0

    def reset(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
