"""``Server``: the HTTP server, started from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import _log, _oxidize

if TYPE_CHECKING:
    from typing_extensions import Self


class Server:
    """A server for models, compatible with clients of OpenAI, Anthropic, Ollama and llama-server.

    It runs on threads of its own until :meth:`stop`, or the end of the ``with`` block::

        with oxidize.Server("model.gguf", port=0) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    """

    def __init__(
        self,
        models: str | os.PathLike[str] | Sequence[str] | Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        api_keys: Sequence[str] = (),
        n_ctx: int | None = None,
        n_parallel: int | None = None,
        n_threads: int | None = None,
    ) -> None:
        """Starts the server. ``models`` is a path, a list of paths, or paths by name; port 0 is any free one."""
        _log.listen()
        if isinstance(models, (str, os.PathLike)):
            models = [os.fspath(models)]
        if isinstance(models, Mapping):
            named = [(name, os.fspath(path)) for name, path in models.items()]
        else:
            named = [(Path(path).stem, os.fspath(path)) for path in models]
        for _, path in named:
            if not os.path.exists(path):
                raise ValueError(f"Model path does not exist: {path}")
        self._server = _oxidize.Server(
            named,
            host,
            port,
            api_keys=list(api_keys),
            n_ctx=n_ctx,
            n_parallel=n_parallel,
            n_threads=n_threads,
        )

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://{self._server.address}"

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server ends, at most ``timeout`` seconds; true if it has ended."""
        return self._server.wait(timeout)

    def stop(self) -> None:
        """Lets running requests finish, and ends the server."""
        self._server.stop()
        _log.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server({self.url})"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}">{self.url}</a>'
