"""The names of llama-cpp-python: ``import oxidize.llama_cpp as llama_cpp``.

:func:`install_as_llama_cpp` makes ``import llama_cpp`` find this package, for libraries that import it themselves.
"""

from __future__ import annotations

import sys as _sys

from . import llama_cpp, llama_types
from .llama import (
    Llama,
    LlamaState,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from .llama_cache import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache
from .llama_cpp import *
from .llama_cpp import __getattr__ as __getattr__
from .llama_cpp import _lib as _lib
from .llama_grammar import LlamaGrammar
from .llama_speculative import LlamaDraftModel
from .llama_tokenizer import BaseLlamaTokenizer, LlamaHFTokenizer, LlamaTokenizer
from .llama_types import *

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaHFTokenizer",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "install_as_llama_cpp",
]
__all__ += llama_cpp.__all__
__all__ += llama_types.__all__

# The version of llama-cpp-python whose interface this is: packages compare it.
__version__ = "0.3.36"

_SUBMODULES = (
    "_internals",
    "llama",
    "llama_cache",
    "llama_chat_format",
    "llama_cpp",
    "llama_grammar",
    "llama_speculative",
    "llama_tokenizer",
    "llama_types",
)


def install_as_llama_cpp() -> None:
    """Lets ``import llama_cpp`` find this package, also as ``llama_cpp_cuda``.

    Raises RuntimeError if llama-cpp-python itself is loaded already: call this before importing what uses it.
    """
    import importlib

    here = _sys.modules[__name__]
    for alias in ("llama_cpp", "llama_cpp_cuda"):
        loaded = _sys.modules.get(alias)
        if loaded is not None and loaded is not here:
            raise RuntimeError(
                f"{alias} is imported already, from {getattr(loaded, '__file__', None)}; "
                "call oxidize.install_as_llama_cpp() before any package imports it"
            )
    for alias in ("llama_cpp", "llama_cpp_cuda"):
        _sys.modules[alias] = here
        for name in _SUBMODULES:
            _sys.modules[f"{alias}.{name}"] = importlib.import_module(f"{__name__}.{name}")
