"""Parameters of a model and of its context, as attributes that programs read."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _oxidize

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
    "attention_type": -1,
    "op_offload": None,
    "swa_full": None,
    "lora_base": None,
    "numa": False,
}
# Names of earlier versions, which other packages still send.
_OLD_NAMES = frozenset("n_parts f16_kv n_gqa rms_norm_eps mul_mat_q low_vram device".split())

_mentioned: set[str] = set()


def mention_once(key: str, text: str, level: int) -> None:
    """Logs a message the first time."""
    if key not in _mentioned:
        _mentioned.add(key)
        logger.log(level, "%s", text)


def mention_unused(given: dict[str, Any], unknown: dict[str, Any]) -> None:
    """Says once of each parameter without a meaning here that it has none: as a warning if ``verbose``."""
    level = logging.WARNING if given.get("verbose") else logging.INFO
    for name, value in given.items():
        if name in _WITHOUT_MEANING and value != _WITHOUT_MEANING[name]:
            mention_once(name, f"{name} has no effect in oxidize", level)
    for name in unknown:
        if name not in _OLD_NAMES:
            mention_once(name, f"{name} is not a parameter of Llama and has no effect", level)
    layers = given.get("n_gpu_layers")
    if layers:
        text = f"n_gpu_layers={layers} has no effect: this build has only the CPU backend"
        mention_once("n_gpu_layers", text, level)


def rope_settings(given: dict[str, Any]) -> _oxidize.RopeSettings | None:
    """RoPE parameters that differ from the defaults, which stand for the model's own; None without any."""
    absent: dict[str, Any] = {
        "freq_base": 0.0,
        "freq_scale": 0.0,
        "scaling_type": -1,
        "yarn_orig_ctx": 0,
        "yarn_attn_factor": 1.0,
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": 1.0,
    }
    settings: Any = {}
    for name, default in absent.items():
        value = given[name if name.startswith("yarn") else f"rope_{name}"]
        settings[name] = None if value is None or value == default else value
    share = given["yarn_ext_factor"]
    settings["yarn_ext_factor"] = None if share < 0 else share
    if all(value is None for value in settings.values()):
        return None
    settings["n_ctx"] = given["n_ctx"] or None
    chosen: _oxidize.RopeSettings = settings
    return chosen


def metadata_overrides(given: dict[str, Any] | None) -> list[tuple[str, bool | int | float | str]]:
    """Values that replace metadata of the file."""
    for key, value in (given or {}).items():
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"Unknown value type for {key}: {value!r}; bool, int, float and str are supported")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"kv_overrides[{key!r}] is {value}, which does not fit into 64 bits")
    return list((given or {}).items())


def warn_of_rope(name: str, value: float, own: float | None) -> None:
    """Warns once that a parameter of RoPE replaces that of the model."""
    if own is not None and value not in (0.0, own) and f"{name} {value}" not in _mentioned:
        _mentioned.add(f"{name} {value}")
        warnings.warn(
            f"{name}={value:g} replaces the model's own {own:g}, which spoils its answers unless it was "
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
