"""Models for the tests: the fixture of the repository, and the test models that `make setup` fetches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from oxidize import Engine, Llama

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("OXIDIZE_TEST_CACHE") or Path.home() / ".cache" / "oxidize")


def needed(path: Path) -> str:
    """The path, or a skipped test."""
    if not path.exists():
        pytest.skip(f"{path} is not there; `make setup` fetches the test models")
    return str(path)


@pytest.fixture(scope="session")
def tiny_path() -> str:
    """A model with random weights."""
    return str(ROOT / "fixtures" / "tiny" / "model.gguf")


@pytest.fixture(scope="session")
def smol_path() -> str:
    """A small chat model."""
    return needed(CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Tiny models of many architectures, beside the checkout."""
    return Path(needed(ROOT.parent / "shared" / "golden"))


@pytest.fixture(scope="session")
def vocabularies() -> Path:
    """Vocabularies of llama.cpp."""
    return Path(needed(CACHE / "vocab"))


@pytest.fixture(scope="session")
def smol(smol_path: str) -> Iterator[Llama]:
    """The chat model, shared by tests that leave no state behind. Equal requests have equal answers."""
    with Llama(smol_path, n_ctx=512, deterministic=True, verbose=False) as llm:
        yield llm


@pytest.fixture
def tiny(tiny_path: str) -> Iterator[Llama]:
    """A model of its own."""
    with Llama(tiny_path, n_ctx=128, verbose=False) as llm:
        yield llm


@pytest.fixture(scope="session")
def engine(smol_path: str) -> Iterator[Engine]:
    """The chat model in the newer interface."""
    with Engine(smol_path, n_ctx=512, deterministic=True) as running:
        yield running
