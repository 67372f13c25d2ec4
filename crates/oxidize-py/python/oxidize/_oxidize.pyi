"""The Rust part of the package."""

from collections.abc import Callable
from os import PathLike
from typing import Any, TypedDict, final, type_check_only

import numpy as np
import numpy.typing as npt

__version__: str

_TokenTuple = tuple[int, str, "float | None", list[tuple[int, float]]]

@type_check_only
class SamplingSettings(TypedDict, total=False):
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    tfs_z: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    mirostat_mode: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    logit_bias: list[tuple[int, float]] | None
    seed: int | None
    samplers: str | None
    n_probs: int | None
    stop: list[str] | None
    stop_tokens: list[int] | None
    min_tokens: int | None

@type_check_only
class EngineSettings(TypedDict, total=False):
    n_ctx: int | None
    n_batch: int | None
    n_parallel: int | None
    n_queue: int | None
    n_threads: int | None
    cache_tokens: int | None
    type_k: str | None
    type_v: str | None
    deterministic: bool | None
    draft_ngram: bool | None
    draft_tokens: int | None

@type_check_only
class RequestSettings(TypedDict, total=False):
    max_tokens: int | None
    grammar: tuple[str, str] | None
    sampling: SamplingSettings | None
    prompt_logprobs: int | None
    render_special: bool | None
    ignore_eos: bool | None
    priority: int | None
    prediction: str | None
    processor: Callable[[list[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None] | None

@type_check_only
class RopeSettings(TypedDict, total=False):
    freq_base: float | None
    freq_scale: float | None
    scaling_type: int | None
    yarn_orig_ctx: float | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_fast: float | None
    yarn_beta_slow: float | None
    n_ctx: int | None

@type_check_only
class Completion(TypedDict):
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    end_token: int | None
    seed: int
    queued: float
    prompt_time: float
    generation_time: float

@final
class Model:
    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        mmap: bool = True,
        adapters: list[tuple[str, float]] = ...,
        overrides: list[tuple[str, bool | int | float | str]] = ...,
        rope: RopeSettings | None = None,
    ) -> Model: ...
    @property
    def architecture(self) -> str: ...
    @property
    def path(self) -> PathLike[str]: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_params(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def rope_freq_base(self) -> float | None: ...
    @property
    def rope_freq_scale(self) -> float | None: ...
    @property
    def generates_text(self) -> bool: ...
    @property
    def has_state(self) -> bool: ...
    @property
    def has_cache(self) -> bool: ...
    @property
    def pooling(self) -> int | None: ...
    def metadata(self) -> list[tuple[str, str]]: ...
    def tokenizer(self) -> Tokenizer: ...
    def chat_template(self) -> str | None: ...
    def sampling_defaults(self) -> str: ...
    def check_grammar(self, kind: str, text: str) -> None: ...
    def render(self, conversation: str, template: str | None = None) -> tuple[str, list[int]]: ...
    def message_parser(
        self, tools: str | None, prompt: str, template: str | None = None, reasoning: bool = True
    ) -> MessageParser: ...

@final
class MessageParser:
    def push(self, text: str) -> str: ...
    def finish(self) -> str: ...

@final
class Tokenizer:
    @staticmethod
    def open(path: str | PathLike[str]) -> Tokenizer: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def eot(self) -> int | None: ...
    @property
    def cls(self) -> int | None: ...
    @property
    def sep(self) -> int | None: ...
    @property
    def newline(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_eos(self) -> bool: ...
    def encode(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]: ...
    def decode(self, tokens: list[int], special: bool) -> bytes: ...
    def piece(self, token: int) -> bytes | None: ...
    def token_text(self, token: int) -> str | None: ...
    def token_id(self, text: str) -> int | None: ...
    def is_special(self, token: int) -> bool: ...
    def is_end(self, token: int) -> bool: ...
    def kind(self, token: int) -> int: ...
    def infill(self, before: str, after: str, suffix_first: bool = False) -> list[int] | None: ...

@final
class Engine:
    def __new__(cls, model: Model, settings: EngineSettings) -> Engine: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def cache_tokens(self) -> int: ...
    def submit(self, prompt: list[int], settings: RequestSettings) -> Stream: ...
    def check(self) -> None: ...
    def close(self) -> None: ...

@final
class Stream:
    def next(self) -> _TokenTuple | None: ...
    def collect(self) -> list[_TokenTuple]: ...
    def poll(self, queue: ReadyQueue, key: int) -> Any: ...
    def completion(self) -> Completion | None: ...
    def prompt_logprobs(self) -> list[tuple[int, float | None, list[tuple[int, float]]]]: ...
    def cancel(self) -> None: ...

@final
class ReadyQueue:
    def __new__(cls) -> ReadyQueue: ...
    def wait(self, timeout: float) -> list[int]: ...

@final
class Session:
    def __new__(cls, model: Model, n_ctx: int, n_threads: int | None = None, hidden: bool = False) -> Session: ...
    def decode(self, tokens: list[int], start: int, n_outputs: int) -> npt.NDArray[np.float32]: ...
    def save(self, n_tokens: int) -> bytes: ...
    def load(self, bytes: bytes, n_tokens: int) -> bool: ...
    def close(self) -> None: ...

@final
class Sampler:
    def __new__(cls, model: Model, settings: SamplingSettings) -> Sampler: ...
    def accept(self, tokens: list[int]) -> None: ...
    def sample(self, logits: npt.NDArray[np.float32], constraint: Constraint | None = None) -> int: ...

@final
class Constraint:
    def __new__(cls, model: Model, kind: str, text: str) -> Constraint: ...
    @property
    def is_complete(self) -> bool: ...
    def accept(self, token: int) -> None: ...
    def allows(self, token: int) -> bool: ...

@final
class Embedder:
    def __new__(
        cls,
        model: Model,
        n_ctx: int,
        n_batch: int = 512,
        n_threads: int | None = None,
        pooling: int | None = None,
        normalize: bool = False,
    ) -> Embedder: ...
    def embed(self, texts: list[list[int]]) -> list[list[list[float]]]: ...
    def close(self) -> None: ...

@final
class Server:
    def __new__(
        cls,
        models: list[tuple[str, str]],
        host: str,
        port: int,
        *,
        api_keys: list[str] = ...,
        n_ctx: int | None = None,
        n_parallel: int | None = None,
        n_threads: int | None = None,
    ) -> Server: ...
    @property
    def address(self) -> str: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def stop(self) -> None: ...

def render_template(
    template: str, conversation: str, bos_token: str, eos_token: str, add_generation_prompt: bool
) -> str: ...
def forced_call_schema(tools: str, tool_choice: str, parallel: bool) -> str | None: ...
def log_from(level: int) -> None: ...
def take_log() -> list[tuple[int, str, str]]: ...
def open_vocab(tokenizer: Tokenizer) -> int: ...
def close_vocab(handle: int) -> None: ...
def run_command(arguments: list[str]) -> int: ...
def check_processor() -> None: ...
def available_memory() -> int | None: ...

__all__ = [
    "Constraint",
    "Embedder",
    "Engine",
    "MessageParser",
    "Model",
    "ReadyQueue",
    "Sampler",
    "Server",
    "Session",
    "Stream",
    "Tokenizer",
    "__version__",
    "available_memory",
    "check_processor",
    "close_vocab",
    "forced_call_schema",
    "log_from",
    "open_vocab",
    "render_template",
    "run_command",
    "take_log",
]
