"""Messages of the engine in Python's ``logging``, under the logger ``oxidize``."""

from __future__ import annotations

import logging

from . import _oxidize

logger = logging.getLogger("oxidize")


def listen() -> None:
    """Keeps messages that the logger would show."""
    level = logger.getEffectiveLevel()
    _oxidize.log_from(min(max(level, 5), 50))


def drain() -> None:
    """Passes the messages on that the engine's threads have left."""
    for level, name, text in _oxidize.take_log():
        logging.getLogger(name).log(level, "%s", text)
