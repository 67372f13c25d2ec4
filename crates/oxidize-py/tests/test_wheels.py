"""The check of wheels that CI runs (`scripts/check_wheels.py`)."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def checker() -> Any:
    spec = importlib.util.spec_from_file_location("check_wheels", ROOT / "scripts" / "check_wheels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_wheel(checker: Any, directory: Path, tag: str, *, tags: str | None = None, leave_out: str = "") -> None:
    with zipfile.ZipFile(directory / f"oxidize-0.1.0-{tag}.whl", "w") as wheel:
        for file in (*checker.FILES, "oxidize/_oxidize.abi3.so"):
            if file != leave_out:
                wheel.writestr(file, "")
        wheel.writestr("oxidize-0.1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tags or tag}\n")


def test_right_wheels_pass(checker: Any, tmp_path: Path) -> None:
    write_wheel(checker, tmp_path, "cp39-abi3-manylinux_2_28_x86_64")
    write_wheel(checker, tmp_path, "cp314-cp314t-manylinux_2_28_x86_64")
    write_wheel(checker, tmp_path, "cp315-abi3t-manylinux_2_28_x86_64")
    kinds = ["cp39-abi3-manylinux_2_28_x86_64", "cp314-cp314t", "cp315-abi3t"]
    assert checker.check(tmp_path, kinds) == []


def test_a_wheel_for_another_python_is_found_by_its_name(checker: Any, tmp_path: Path) -> None:
    write_wheel(checker, tmp_path, "cp311-cp311-manylinux_2_28_x86_64")
    problems = checker.check(tmp_path, ["cp315-abi3t"])
    assert "0 wheels of kind cp315-abi3t instead of one" in problems[0]
    assert "of no expected kind" in problems[1]


def test_incomplete_and_large_wheels_are_refused(
    checker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(checker, tmp_path, "cp39-abi3-linux_x86_64", tags="cp39-abi3-any", leave_out="oxidize/py.typed")
    (text,) = [problem for problem in checker.check(tmp_path, ["cp39-abi3"]) if "py.typed" in problem]
    assert "is missing" in text
    assert any("metadata" in problem for problem in checker.check(tmp_path, ["cp39-abi3"]))
    assert any("manylinux" in problem for problem in checker.check(tmp_path, ["cp39-abi3-manylinux_2_28_x86_64"]))
    monkeypatch.setattr(checker, "MAX_BYTES", 100)
    assert any("at most 100 are allowed" in problem for problem in checker.check(tmp_path, ["cp39-abi3"]))
