"""Representations for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _oxidize


def table(rows: Mapping[str, str]) -> str:
    """Names and values as a table."""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items()
    )
    return f"<table>{cells}</table>"


def model_table(path: str, model: _oxidize.Model, n_ctx: int) -> str:
    """A loaded model as a table."""
    return table(
        {
            "model": path,
            "architecture": model.architecture,
            "parameters": f"{model.n_params / 1e6:,.0f} M",
            "file": f"{model.n_bytes / 1e6:,.0f} MB",
            "context": f"{n_ctx:,} tokens",
        }
    )
