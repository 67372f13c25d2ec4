"""Caches of evaluated prompts.

The engine keeps common prefixes itself; these caches serve programs that use them by name.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .llama import LlamaState


def _prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return index
    return min(len(a), len(b))


class BaseLlamaCache(ABC):
    """A cache of states, found by the longest common prefix of their tokens."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """Bytes of all states."""

    def _find_longest_prefix_key(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        raise NotImplementedError

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState: ...

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool: ...

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None: ...


class LlamaRAMCache(BaseLlamaCache):
    """A cache in memory."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.cache_state: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        return sum(state.llama_state_size for state in self.cache_state.values())

    def _find_longest_prefix_key(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        found = max(self.cache_state, key=lambda k: _prefix_length(k, key), default=None)
        return found if found is not None and _prefix_length(found, key) > 0 else None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = self._find_longest_prefix_key(tuple(key))
        if found is None:
            raise KeyError("Key not found")
        self.cache_state.move_to_end(found)
        return self.cache_state[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find_longest_prefix_key(tuple(key)) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self.cache_state.pop(tuple(key), None)
        self.cache_state[tuple(key)] = value
        while self.cache_size > self.capacity_bytes and self.cache_state:
            self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """A cache in a directory: a file for each state, written as a whole or not at all.

    States are pickles: use only directories that nobody else can write to.
    """

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.directory = Path(cache_dir)
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def cache_size(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _files(self) -> list[tuple[float, int, Path]]:
        """Times, sizes and paths of the states, oldest first."""
        files = []
        for path in self.directory.glob("*.state"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            files.append((status.st_mtime, status.st_size, path))
        return sorted(files)

    def _path(self, key: tuple[int, ...]) -> Path:
        digest = hashlib.sha256(" ".join(map(str, key)).encode()).hexdigest()
        return self.directory / f"{digest[:40]}.state"

    def _keys(self) -> dict[tuple[int, ...], Path]:
        keys = {}
        for _, _, path in self._files():
            try:
                with path.open("rb") as file:
                    keys[tuple(pickle.load(file))] = path
            except (OSError, EOFError, pickle.UnpicklingError, TypeError):
                # Another process removes the file, or it is none of ours.
                continue
        return keys

    def _find_longest_prefix_key(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        found = max(self._keys(), key=lambda k: _prefix_length(k, key), default=None)
        return found if found is not None and _prefix_length(found, key) > 0 else None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        found = self._find_longest_prefix_key(tuple(key))
        if found is None:
            raise KeyError("Key not found")
        path = self._path(found)
        try:
            with path.open("rb") as file:
                pickle.load(file)
                state: LlamaState = pickle.load(file)
        except FileNotFoundError:
            raise KeyError("Key not found") from None
        os.utime(path)
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find_longest_prefix_key(tuple(key)) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        # A full disk leaves no half a state behind.
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                pickle.dump(list(key), file)
                pickle.dump(value, file)
            os.replace(name, self._path(tuple(key)))
        except BaseException:
            os.unlink(name)
            raise
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.capacity_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
