"""Handles of models and contexts: numbers that are looked up and never followed."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._internals import LlamaModel
    from .llama import Llama

_models: dict[int, weakref.ref[LlamaModel]] = {}
_contexts: dict[int, weakref.ref[Llama]] = {}
_context_of: weakref.WeakKeyDictionary[Llama, int] = weakref.WeakKeyDictionary()
_next_context = itertools.count(0x2000_0000, 16)
_lock = threading.Lock()


def register_model(model: LlamaModel) -> int:
    """The handle of a model, which is that of its vocabulary."""
    handle = model.vocab
    with _lock:
        _models[handle] = weakref.ref(model)
    return handle


def unregister_model(handle: int) -> None:
    """Makes a handle invalid."""
    with _lock:
        _models.pop(handle, None)


def register_context(llama: Llama) -> int:
    """The handle of a context."""
    with _lock:
        handle = _context_of.get(llama)
        if handle is None:
            handle = next(_next_context)
            _context_of[llama] = handle
            _contexts[handle] = weakref.ref(llama, lambda _: _contexts.pop(handle, None))
        return handle


def model(handle: Any) -> LlamaModel:
    """The model of a handle."""
    reference = _models.get(_number(handle))
    found = reference() if reference is not None else None
    if found is None:
        raise ValueError(f"{handle!r} is not the handle of an open model")
    return found


def context(handle: Any) -> Llama:
    """The ``Llama`` of a handle."""
    reference = _contexts.get(_number(handle))
    found = reference() if reference is not None else None
    if found is None or found._closed:
        raise ValueError(f"{handle!r} is not the handle of an open context")
    return found


def _number(handle: Any) -> int:
    """The number of a handle, which may be a pointer of ctypes."""
    value = getattr(handle, "value", handle)
    return value if isinstance(value, int) else 0
