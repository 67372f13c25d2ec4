"""Functions of llama.cpp's C interface that Python packages call below ``Llama``.

Models, contexts and vocabularies are handles: integers that are looked up and never followed. Structures have the
layout of llama.cpp, so that programs fill them in place. Functions that are not here raise an AttributeError that says
so.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

from .. import _oxidize
from .._log import logger
from . import _handles

if TYPE_CHECKING:
    from ._internals import LlamaModel
    from .llama import Llama

# Constants.

LLAMA_DEFAULT_SEED = 0xFFFFFFFF
LLAMA_TOKEN_NULL = -1
LLAMA_MAX_DEVICES = 16
LLAMA_SPLIT_MODE_NONE, LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_ROW = 0, 1, 2
LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED, LLAMA_ROPE_SCALING_TYPE_NONE = -1, 0
LLAMA_ROPE_SCALING_TYPE_LINEAR, LLAMA_ROPE_SCALING_TYPE_YARN = 1, 2
LLAMA_POOLING_TYPE_UNSPECIFIED, LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN = -1, 0, 1
LLAMA_POOLING_TYPE_CLS, LLAMA_POOLING_TYPE_LAST, LLAMA_POOLING_TYPE_RANK = 2, 3, 4
LLAMA_ATTENTION_TYPE_UNSPECIFIED, LLAMA_ATTENTION_TYPE_CAUSAL, LLAMA_ATTENTION_TYPE_NON_CAUSAL = -1, 0, 1
LLAMA_FLASH_ATTN_TYPE_AUTO, LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED = -1, 0, 1
LLAMA_VOCAB_TYPE_NONE, LLAMA_VOCAB_TYPE_SPM, LLAMA_VOCAB_TYPE_BPE, LLAMA_VOCAB_TYPE_WPM = 0, 1, 2, 3
LLAMA_TOKEN_TYPE_UNDEFINED, LLAMA_TOKEN_TYPE_NORMAL, LLAMA_TOKEN_TYPE_UNKNOWN = 0, 1, 2
LLAMA_TOKEN_TYPE_CONTROL, LLAMA_TOKEN_TYPE_USER_DEFINED, LLAMA_TOKEN_TYPE_UNUSED, LLAMA_TOKEN_TYPE_BYTE = 3, 4, 5, 6
LLAMA_TOKEN_ATTR_UNDEFINED, LLAMA_TOKEN_ATTR_UNKNOWN, LLAMA_TOKEN_ATTR_UNUSED = 0, 1, 2
LLAMA_TOKEN_ATTR_NORMAL, LLAMA_TOKEN_ATTR_CONTROL, LLAMA_TOKEN_ATTR_USER_DEFINED, LLAMA_TOKEN_ATTR_BYTE = 4, 8, 16, 32
GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0 = 0, 1, 2, 8
GGML_NUMA_STRATEGY_DISABLED, GGML_NUMA_STRATEGY_DISTRIBUTE = 0, 1

# Types. Handles fit into pointers.

llama_model_p = int
llama_model_p_ctypes = ctypes.c_void_p
llama_context_p = int
llama_context_p_ctypes = ctypes.c_void_p
llama_vocab_p = int
llama_vocab_p_ctypes = ctypes.c_void_p
llama_memory_t = int
llama_memory_t_ctypes = ctypes.c_void_p
llama_token = ctypes.c_int32
llama_token_p = ctypes.POINTER(llama_token)
llama_pos = ctypes.c_int32
llama_seq_id = ctypes.c_int32


class llama_batch(ctypes.Structure):
    """Input of ``llama_decode``."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(llama_token)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(llama_pos)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(llama_seq_id))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class llama_token_data(ctypes.Structure):
    """A candidate."""

    _fields_ = [("id", llama_token), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class llama_token_data_array(ctypes.Structure):
    """Candidates."""

    _fields_ = [
        ("data", ctypes.POINTER(llama_token_data)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

# Logits of contexts after their last batch, and the memory of batches.
_logits: weakref.WeakKeyDictionary[Llama, Any] = weakref.WeakKeyDictionary()
_batches: dict[int, list[Any]] = {}
_lock = threading.Lock()

# The library. Its one function is called by address.

_lib = ctypes.CDLL(_oxidize.__file__)
_lib.llama_tokenize.argtypes = [
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.POINTER(llama_token),
    ctypes.c_int32,
    ctypes.c_bool,
    ctypes.c_bool,
]
_lib.llama_tokenize.restype = ctypes.c_int32


def llama_backend_init() -> None:
    """Does nothing."""


def llama_backend_free() -> None:
    """Does nothing."""


def llama_log_set(log_callback: Any, user_data: Any) -> None:
    """Does nothing: messages go to Python's ``logging``."""
    logger.debug("llama_log_set has no effect; messages are in the logger `oxidize`")


def llama_supports_mmap() -> bool:
    """True: files are mapped."""
    return True


def llama_supports_mlock() -> bool:
    """False: memory is not locked."""
    return False


def llama_supports_gpu_offload() -> bool:
    """False: the model runs on the CPU."""
    return False


def llama_max_devices() -> int:
    """Number of devices that a model can be split over."""
    return 1


def llama_print_system_info() -> bytes:
    """The engine and its version."""
    return f"oxidize {_oxidize.__version__} | CPU".encode()


def llama_model_get_vocab(model: Any, /) -> int:
    """The vocabulary of a model."""
    return _handles.model(model).vocab


def llama_get_model(ctx: Any, /) -> int:
    """The model of a context."""
    return _handles.register_model(_handles.context(ctx)._model)


def llama_model_n_ctx_train(model: Any, /) -> int:
    """Context that the model was trained on."""
    return _handles.model(model).n_ctx_train()


def llama_model_n_embd(model: Any, /) -> int:
    """Width of embeddings."""
    return _handles.model(model).n_embd()


def llama_vocab_n_tokens(vocab: Any, /) -> int:
    """Number of tokens."""
    return _model_of(vocab).n_vocab()


def _model_of(vocab: Any) -> LlamaModel:
    return _handles.model(vocab)


def llama_vocab_bos(vocab: Any, /) -> int:
    """The token that begins a text."""
    return _model_of(vocab).token_bos()


def llama_vocab_eos(vocab: Any, /) -> int:
    """The token that ends a text."""
    return _model_of(vocab).token_eos()


def llama_vocab_eot(vocab: Any, /) -> int:
    """The token that ends a turn."""
    return _model_of(vocab).token_eot()


def llama_vocab_nl(vocab: Any, /) -> int:
    """The token of a newline."""
    return _model_of(vocab).token_nl()


def llama_vocab_is_eog(vocab: Any, token: Any, /) -> bool:
    """True if the token ends an answer."""
    return _model_of(vocab).native_tokenizer.is_end(_token(token))


def llama_vocab_get_text(vocab: Any, token: Any, /) -> bytes:
    """The text of a token as stored in the vocabulary."""
    return _model_of(vocab).token_get_text(_token(token)).encode()


_ATTRIBUTES = {
    1: LLAMA_TOKEN_ATTR_NORMAL,
    2: LLAMA_TOKEN_ATTR_UNKNOWN,
    3: LLAMA_TOKEN_ATTR_CONTROL,
    4: LLAMA_TOKEN_ATTR_USER_DEFINED,
    5: LLAMA_TOKEN_ATTR_UNUSED,
    6: LLAMA_TOKEN_ATTR_BYTE,
}


def llama_vocab_get_attr(vocab: Any, token: Any, /) -> int:
    """Attributes of a token."""
    kind = _model_of(vocab).native_tokenizer.kind(_token(token))
    return _ATTRIBUTES.get(kind, LLAMA_TOKEN_ATTR_UNDEFINED)


llama_token_get_attr = llama_vocab_get_attr


def llama_token_is_eog(vocab: Any, token: Any, /) -> bool:
    """True if the token ends an answer."""
    return llama_vocab_is_eog(vocab, token)


def _token(token: Any) -> int:
    value = int(getattr(token, "value", token))
    # Tokens of llama.cpp are signed; no token has these numbers.
    return value if value >= 0 else 0xFFFFFFFF


def llama_token_to_piece(vocab: Any, token: Any, buf: Any, length: Any, lstrip: Any, special: Any, /) -> int:
    """Writes the bytes of a token: their number, negative if there is room for fewer."""
    piece = _model_of(vocab).token_to_piece(_token(token), bool(special))
    for _ in range(int(getattr(lstrip, "value", lstrip))):
        piece = piece.removeprefix(b" ")
    room = int(getattr(length, "value", length))
    if len(piece) > room:
        return -len(piece)
    if piece:
        ctypes.memmove(buf, piece, len(piece))
    return len(piece)


def llama_tokenize(
    vocab: Any, text: bytes, text_len: Any, tokens: Any, n_tokens_max: Any, add_special: Any, parse_special: Any, /
) -> int:
    """Writes the tokens of a text: their number, negative if there is room for fewer."""
    count: int = _lib.llama_tokenize(vocab, text, text_len, tokens, n_tokens_max, add_special, parse_special)
    return count


def llama_n_ctx(ctx: Any, /) -> int:
    """Tokens of a context."""
    return _handles.context(ctx).n_ctx()


def llama_n_batch(ctx: Any, /) -> int:
    """Tokens of a batch."""
    return _handles.context(ctx).n_batch


def llama_get_memory(ctx: Any, /) -> int:
    """The cache of a context: its handle."""
    return _handles.register_context(_handles.context(ctx))


def llama_memory_clear(mem: Any, data: bool, /) -> None:
    """Forgets all tokens."""
    _handles.context(mem)._own_sequence().truncate(0)


def llama_memory_seq_rm(mem: Any, seq_id: Any, p0: Any, p1: Any, /) -> bool:
    """Forgets tokens up to the end; false for a range before it."""
    return _handles.context(mem)._ctx.kv_cache_seq_rm(int(seq_id), int(p0), int(p1))


def llama_batch_init(n_tokens: Any, embd: Any, n_seq_max: Any, /) -> llama_batch:
    """A batch with room for ``n_tokens`` tokens."""
    n_tokens, n_seq_max = int(getattr(n_tokens, "value", n_tokens)), int(getattr(n_seq_max, "value", n_seq_max))
    if int(getattr(embd, "value", embd)) != 0:
        raise ValueError("batches of embeddings are not supported")
    sequences = [(llama_seq_id * max(n_seq_max, 1))() for _ in range(n_tokens)]
    # One pointer more than tokens: a null, as llama.cpp has it.
    rows = (ctypes.POINTER(llama_seq_id) * (n_tokens + 1))(
        *[ctypes.cast(sequence, ctypes.POINTER(llama_seq_id)) for sequence in sequences]
    )
    arrays = [
        (llama_token * n_tokens)(),
        (llama_pos * n_tokens)(),
        (ctypes.c_int32 * n_tokens)(),
        rows,
        (ctypes.c_int8 * n_tokens)(),
    ]
    token, pos, n_seq_id, seq_id, logits = arrays
    batch = llama_batch(
        0,
        ctypes.cast(token, ctypes.POINTER(llama_token)),
        None,
        ctypes.cast(pos, ctypes.POINTER(llama_pos)),
        ctypes.cast(n_seq_id, ctypes.POINTER(ctypes.c_int32)),
        ctypes.cast(seq_id, ctypes.POINTER(ctypes.POINTER(llama_seq_id))),
        ctypes.cast(logits, ctypes.POINTER(ctypes.c_int8)),
    )
    with _lock:
        _batches[ctypes.addressof(token)] = [arrays, sequences]
    return batch


def llama_batch_free(batch: llama_batch, /) -> None:
    """Gives the memory of a batch back."""
    with _lock:
        _batches.pop(ctypes.addressof(batch.token.contents), None)


def llama_decode(ctx: Any, batch: llama_batch, /) -> int:
    """Evaluates a batch of one sequence: 0, or 1 if the context has no room for it."""
    llama = _handles.context(ctx)
    n_tokens = batch.n_tokens
    tokens = batch.token[:n_tokens]
    positions = batch.pos[:n_tokens]
    wanted = [bool(flag) for flag in batch.logits[:n_tokens]]
    if n_tokens == 0:
        return -1
    start = positions[0]
    if positions != list(range(start, start + n_tokens)) or start < 0:
        raise ValueError("positions must follow each other")
    if any(batch.seq_id[index][0] != 0 for index in range(n_tokens)):
        raise ValueError("sequences other than 0 are not supported")
    if start + n_tokens > llama.n_ctx():
        return 1
    sequence = llama._own_sequence()
    if start > len(sequence.tokens):
        raise ValueError(f"position {start} is behind the {len(sequence.tokens)} tokens of the sequence")
    n_outputs = n_tokens - wanted.index(True) if True in wanted else 0
    rows = sequence.evaluate(sequence.tokens[:start] + tokens, n_outputs)
    if True in wanted:
        import numpy as np

        llama_rows = rows if all(wanted[n_tokens - n_outputs :]) else rows[wanted[n_tokens - n_outputs :]]
        _logits[llama] = np.ascontiguousarray(llama_rows)
    return 0


def llama_get_logits(ctx: Any, /) -> Any:
    """The logits of the last batch, row by row, for the tokens that asked for them."""
    rows = _logits.get(_handles.context(ctx))
    return None if rows is None else rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def llama_get_logits_ith(ctx: Any, i: Any, /) -> Any:
    """One row of the logits of the last batch; negative numbers count from the end."""
    rows = _logits.get(_handles.context(ctx))
    index = int(getattr(i, "value", i))
    if rows is None or not -len(rows) <= index < len(rows):
        return None
    return rows[index].ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def __getattr__(name: str) -> Any:
    if name.startswith(("llama_", "LLAMA_", "ggml_", "GGML_")):
        raise AttributeError(
            f"oxidize does not have llama.cpp's C name {name!r}: it has those that other Python packages use, and no "
            "more; see docs/python.md"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "GGML_NUMA_STRATEGY_DISABLED",
    "GGML_NUMA_STRATEGY_DISTRIBUTE",
    "GGML_TYPE_F16",
    "GGML_TYPE_F32",
    "GGML_TYPE_Q4_0",
    "GGML_TYPE_Q8_0",
    "LLAMA_ATTENTION_TYPE_CAUSAL",
    "LLAMA_ATTENTION_TYPE_NON_CAUSAL",
    "LLAMA_ATTENTION_TYPE_UNSPECIFIED",
    "LLAMA_DEFAULT_SEED",
    "LLAMA_FLASH_ATTN_TYPE_AUTO",
    "LLAMA_FLASH_ATTN_TYPE_DISABLED",
    "LLAMA_FLASH_ATTN_TYPE_ENABLED",
    "LLAMA_MAX_DEVICES",
    "LLAMA_POOLING_TYPE_CLS",
    "LLAMA_POOLING_TYPE_LAST",
    "LLAMA_POOLING_TYPE_MEAN",
    "LLAMA_POOLING_TYPE_NONE",
    "LLAMA_POOLING_TYPE_RANK",
    "LLAMA_POOLING_TYPE_UNSPECIFIED",
    "LLAMA_ROPE_SCALING_TYPE_LINEAR",
    "LLAMA_ROPE_SCALING_TYPE_NONE",
    "LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED",
    "LLAMA_ROPE_SCALING_TYPE_YARN",
    "LLAMA_SPLIT_MODE_LAYER",
    "LLAMA_SPLIT_MODE_NONE",
    "LLAMA_SPLIT_MODE_ROW",
    "LLAMA_TOKEN_ATTR_BYTE",
    "LLAMA_TOKEN_ATTR_CONTROL",
    "LLAMA_TOKEN_ATTR_NORMAL",
    "LLAMA_TOKEN_ATTR_UNDEFINED",
    "LLAMA_TOKEN_ATTR_UNKNOWN",
    "LLAMA_TOKEN_ATTR_UNUSED",
    "LLAMA_TOKEN_ATTR_USER_DEFINED",
    "LLAMA_TOKEN_NULL",
    "LLAMA_TOKEN_TYPE_BYTE",
    "LLAMA_TOKEN_TYPE_CONTROL",
    "LLAMA_TOKEN_TYPE_NORMAL",
    "LLAMA_TOKEN_TYPE_UNDEFINED",
    "LLAMA_TOKEN_TYPE_UNKNOWN",
    "LLAMA_TOKEN_TYPE_UNUSED",
    "LLAMA_TOKEN_TYPE_USER_DEFINED",
    "LLAMA_VOCAB_TYPE_BPE",
    "LLAMA_VOCAB_TYPE_NONE",
    "LLAMA_VOCAB_TYPE_SPM",
    "LLAMA_VOCAB_TYPE_WPM",
    "llama_backend_free",
    "llama_backend_init",
    "llama_batch",
    "llama_batch_free",
    "llama_batch_init",
    "llama_context_p",
    "llama_context_p_ctypes",
    "llama_decode",
    "llama_get_logits",
    "llama_get_logits_ith",
    "llama_get_memory",
    "llama_get_model",
    "llama_log_callback",
    "llama_log_set",
    "llama_max_devices",
    "llama_memory_clear",
    "llama_memory_seq_rm",
    "llama_memory_t",
    "llama_memory_t_ctypes",
    "llama_model_get_vocab",
    "llama_model_n_ctx_train",
    "llama_model_n_embd",
    "llama_model_p",
    "llama_model_p_ctypes",
    "llama_n_batch",
    "llama_n_ctx",
    "llama_pos",
    "llama_print_system_info",
    "llama_seq_id",
    "llama_supports_gpu_offload",
    "llama_supports_mlock",
    "llama_supports_mmap",
    "llama_token",
    "llama_token_data",
    "llama_token_data_array",
    "llama_token_get_attr",
    "llama_token_is_eog",
    "llama_token_p",
    "llama_token_to_piece",
    "llama_tokenize",
    "llama_vocab_bos",
    "llama_vocab_eos",
    "llama_vocab_eot",
    "llama_vocab_get_attr",
    "llama_vocab_get_text",
    "llama_vocab_is_eog",
    "llama_vocab_n_tokens",
    "llama_vocab_nl",
    "llama_vocab_p",
    "llama_vocab_p_ctypes",
]
