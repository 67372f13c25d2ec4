"""oxidize takes the place of llama_cpp before any package imports it."""

from __future__ import annotations

from collections.abc import Iterator

import oxidize
import pytest

oxidize.install_as_llama_cpp()


@pytest.fixture(scope="session")
def llm(smol_path: str) -> Iterator[oxidize.Llama]:
    """The chat model, shared by the flows that take a model."""
    with oxidize.Llama(smol_path, n_ctx=1024, verbose=False) as llm:
        yield llm
