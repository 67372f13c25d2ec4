"""Async streams: one thread that wakes the tasks whose streams have a token."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Any

from . import _oxidize


class TokenWaiter:
    """One thread that wakes the tasks whose streams have a token, of any event loop."""

    def __init__(self) -> None:
        self._queue = _oxidize.ReadyQueue()
        self._keys = itertools.count()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._open = True
        self._thread = threading.Thread(target=self._run, name="oxidize-async", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._open:
            for key in self._queue.wait(0.5):
                entry = self._waiting.get(key)
                if entry is not None:
                    loop, event = entry
                    try:
                        loop.call_soon_threadsafe(event.set)
                    except RuntimeError:
                        # The loop is closed, and its tasks with it.
                        self._waiting.pop(key, None)

    async def items(self, stream: _oxidize.Stream) -> AsyncIterator[Any]:
        """The tokens of a stream."""
        key, event = next(self._keys), asyncio.Event()
        self._waiting[key] = (asyncio.get_running_loop(), event)
        try:
            while True:
                event.clear()
                item = stream.poll(self._queue, key)
                if item is None:
                    return
                if item is False:
                    await event.wait()
                else:
                    yield item
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        """Ends the thread, and wakes all tasks, which find their streams closed."""
        self._open = False
        for loop, event in list(self._waiting.values()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue
