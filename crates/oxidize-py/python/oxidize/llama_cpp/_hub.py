"""Model files of the Hugging Face hub: downloaded by huggingface_hub, or found in its cache."""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import Any


def find_model(
    repo_id: str,
    filename: str | None,
    additional_files: list[str],
    local_dir: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
) -> str:
    """Path of the file of a repository that matches a pattern; more patterns fetch more files."""
    patterns = [filename or "*.gguf", *additional_files]
    try:
        import huggingface_hub
    except ImportError:
        return _find_local(repo_id, patterns, local_dir, cache_dir)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return _find_local(repo_id, patterns, local_dir, cache_dir)
    huggingface_hub.utils.validate_repo_id(repo_id)
    files = huggingface_hub.HfApi().list_repo_files(repo_id)
    paths = [
        huggingface_hub.hf_hub_download(
            repo_id=repo_id,
            filename=_only_match(repo_id, pattern, files),
            local_dir=local_dir,
            cache_dir=cache_dir,
        )
        for pattern in patterns
    ]
    return str(paths[0])


def _only_match(repo_id: str, pattern: str, files: list[str]) -> str:
    found = [file for file in files if fnmatch.fnmatch(file, pattern)]
    if not found:
        raise ValueError(f"No file found in {repo_id} that match {pattern}\n\nAvailable Files:\n{json.dumps(files)}")
    if len(found) > 1:
        raise ValueError(
            f"Multiple files found in {repo_id} matching {pattern}\n\nAvailable Files:\n{json.dumps(files)}"
        )
    return found[0]


def _find_local(repo_id: str, patterns: list[str], local_dir: Any, cache_dir: Any) -> str:
    """The file in a directory, or in the newest snapshot of the hub's cache."""
    if local_dir is not None:
        snapshots = [Path(local_dir)]
    else:
        repository = _cache(cache_dir) / f"models--{repo_id.replace('/', '--')}"
        snapshots = sorted((repository / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not snapshots:
        raise ImportError(
            f"{repo_id} is not in the local cache {_cache(cache_dir)}. To download it, Llama.from_pretrained requires "
            "the huggingface-hub package. You can install it with `pip install huggingface-hub`."
        )
    newest = snapshots[0]
    files = [path.relative_to(newest).as_posix() for path in newest.rglob("*") if path.is_file()]
    return str(newest / [_only_match(repo_id, pattern, files) for pattern in patterns][0])


def _cache(cache_dir: Any) -> Path:
    environment = os.environ
    if cache_dir is not None:
        return Path(cache_dir)
    if "HF_HUB_CACHE" in environment:
        return Path(environment["HF_HUB_CACHE"])
    if "HF_HOME" in environment:
        return Path(environment["HF_HOME"]) / "hub"
    home = environment.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "huggingface" / "hub"
