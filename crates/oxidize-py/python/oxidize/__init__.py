"""Local language models: llama-cpp-python's API on an engine that batches.

``Llama`` is the class of llama-cpp-python; threads that share one run in one batch. ``Engine`` is the same engine with
lists of prompts, async streams and arrays; ``Server`` starts the HTTP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._oxidize import __version__

if TYPE_CHECKING:
    from .engine import Answer, Engine, Token
    from .llama_cpp import install_as_llama_cpp
    from .llama_cpp.llama import Llama, LlamaState, LogitsProcessorList, StoppingCriteriaList
    from .llama_cpp.llama_cache import LlamaCache, LlamaDiskCache, LlamaRAMCache
    from .llama_cpp.llama_grammar import LlamaGrammar
    from .llama_cpp.llama_tokenizer import LlamaHFTokenizer, LlamaTokenizer
    from .server import Server

# Imported when they are first used, so that `import oxidize` takes milliseconds.
_HOMES = {
    "Answer": "engine",
    "Engine": "engine",
    "Token": "engine",
    "Server": "server",
    "install_as_llama_cpp": "llama_cpp",
    "Llama": "llama_cpp.llama",
    "LlamaState": "llama_cpp.llama",
    "LogitsProcessorList": "llama_cpp.llama",
    "StoppingCriteriaList": "llama_cpp.llama",
    "LlamaCache": "llama_cpp.llama_cache",
    "LlamaDiskCache": "llama_cpp.llama_cache",
    "LlamaRAMCache": "llama_cpp.llama_cache",
    "LlamaGrammar": "llama_cpp.llama_grammar",
    "LlamaHFTokenizer": "llama_cpp.llama_tokenizer",
    "LlamaTokenizer": "llama_cpp.llama_tokenizer",
}

__all__ = [
    "Answer",
    "Engine",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaHFTokenizer",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessorList",
    "Server",
    "StoppingCriteriaList",
    "Token",
    "__version__",
    "install_as_llama_cpp",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'oxidize' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
