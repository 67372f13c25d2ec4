"""Parameters of a model and of its context, as attributes that programs read."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("oxidize")

# Types of ggml that the KV cache can have.
KV_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0"}

LLAMA_DEFAULT_SEED = 0xFFFFFFFF

# Parameters without a meaning here, and their defaults: others are mentioned once.
_WITHOUT_MEANING: dict[str, Any] = {
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "use_mlock": False,
    "rope_scaling_type": -1,
    "attention_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "op_offload": None,
    "swa_full": None,
    "lora_base": None,
    "numa": False,
    "spm_infill": False,
    "kv_overrides": None,
}
# Names of earlier versions, which other packages still send.
_OLD_NAMES = frozenset("n_parts f16_kv n_gqa rms_norm_eps mul_mat_q low_vram device".split())

_mentioned: set[str] = set()


def mention_once(key: str, text: str) -> None:
    """Logs a message the first time."""
    if key not in _mentioned:
        _mentioned.add(key)
        logger.info("%s", text)


def mention_unused(given: dict[str, Any], unknown: dict[str, Any]) -> None:
    """Says once of each parameter without a meaning here that it has none."""
    for name, value in given.items():
        if name in _WITHOUT_MEANING and value != _WITHOUT_MEANING[name]:
            mention_once(name, f"{name} has no effect in oxidize")
    for name in unknown:
        if name not in _OLD_NAMES:
            mention_once(name, f"{name} is not a parameter of Llama and has no effect")
    if given.get("n_gpu_layers"):
        mention_once("n_gpu_layers", "n_gpu_layers has no effect: the model runs on the CPU")


def warn_of_rope(base: float, own: float | None) -> None:
    """Warns once that a RoPE base replaces another one of the model."""
    if own is not None and base not in (0.0, own) and f"rope {base}" not in _mentioned:
        _mentioned.add(f"rope {base}")
        warnings.warn(
            f"rope_freq_base={base:g} replaces the model's own {own:g}, which spoils its answers unless it was "
            "trained so; pass the model's own value, or 0",
            RuntimeWarning,
            stacklevel=4,
        )


def kv_type(number: int | str | None) -> str | None:
    """Name of a type of the KV cache, given by ggml's number or by name."""
    if number is None or isinstance(number, str):
        return number
    if number not in KV_TYPES:
        known = ", ".join(f"{number} ({name})" for number, name in KV_TYPES.items())
        raise ValueError(f"type {number} of the KV cache is not supported; supported are {known}")
    return KV_TYPES[number]


@dataclass
class ModelParams:
    """Parameters of a model."""

    n_gpu_layers: int
    split_mode: int
    main_gpu: int
    tensor_split: list[float] | None
    vocab_only: bool
    use_mmap: bool
    use_mlock: bool
    check_tensors: bool = False


@dataclass
class ContextParams:
    """Parameters of a context."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_threads: int
    n_threads_batch: int
    rope_scaling_type: int
    pooling_type: int
    attention_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    embeddings: bool
    offload_kqv: bool
    flash_attn: bool
    op_offload: bool | None
    swa_full: bool | None
    no_perf: bool
    type_k: int | None
    type_v: int | None
