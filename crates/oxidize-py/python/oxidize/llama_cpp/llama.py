"""``Llama``: the class of llama-cpp-python, on an engine whose requests share every step."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _log, _oxidize
from . import _parameters as parameters
from ._completions import Completions
from ._internals import LlamaBatch, LlamaContext, LlamaModel
from ._parameters import ContextParams, ModelParams
from ._state import (
    LlamaState,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from .llama_speculative import LlamaPromptLookupDecoding
from .llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from .llama_cache import BaseLlamaCache
    from .llama_chat_format import LlamaChatCompletionHandler
    from .llama_grammar import LlamaGrammar
    from .llama_speculative import LlamaDraftModel
    from .llama_types import (
        CreateChatCompletionResponse,
        CreateChatCompletionStreamResponse,
        CreateCompletionResponse,
        CreateEmbeddingResponse,
    )

__all__ = [
    "Llama",
    "LlamaState",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]


class Llama(Completions):
    """A model. Threads may share one: their requests run in one batch."""

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: dict[str, bool | int | float | str] | None = None,
        seed: int = parameters.LLAMA_DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1,
        pooling_type: int = -1,
        attention_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: LlamaChatCompletionHandler | None = None,
        draft_model: LlamaDraftModel | None = None,
        tokenizer: BaseLlamaTokenizer | None = None,
        type_k: int | str | None = None,
        type_v: int | str | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        n_parallel: int = 32,
        deterministic: bool = False,
        **kwargs: Any,
    ) -> None:
        """Loads the model at ``model_path``: a GGUF file or a directory of safetensors.

        The parameters are those of llama-cpp-python. ``n_parallel`` is the number of requests that run at once, and
        ``deterministic`` makes answers independent of the requests beside them, which is slower.
        """
        given = dict(locals())
        self._arguments = {k: v for k, v in given.items() if k not in ("self", "kwargs", "__class__")}
        parameters.mention_unused(given, kwargs)
        self.verbose = verbose
        self._stack = contextlib.ExitStack()
        self.model_path = os.fspath(model_path)
        self.tensor_split = tensor_split
        self.kv_overrides = kv_overrides
        self.numa = numa
        self.lora_base, self.lora_scale, self.lora_path = lora_base, lora_scale, lora_path
        self.spm_infill = spm_infill
        self.last_n_tokens_size = last_n_tokens_size
        self.cache: BaseLlamaCache | None = None
        self.draft_model = draft_model
        self.chat_format = chat_format
        self.chat_handler = chat_handler
        self._chat_handlers: dict[str, LlamaChatCompletionHandler] = {}
        self._seed = seed or parameters.LLAMA_DEFAULT_SEED
        self._seed_lock = threading.Lock()
        self._embedder: _oxidize.Embedder | None = None
        self._embedder_lock = threading.Lock()
        self._engine: _oxidize.Engine | None = None
        if not os.path.exists(self.model_path):
            raise ValueError(f"Model path does not exist: {self.model_path}")
        _log.listen()
        _oxidize.check_processor()
        self._model = self._load(given)
        self.tokenizer_ = tokenizer or LlamaTokenizer(self)
        self.metadata = self._model.metadata()

        native = self._model.native
        if n_ctx < 0 or n_batch < 0:
            raise ValueError(f"n_ctx {n_ctx} and n_batch {n_batch} must not be negative")
        if native is not None:
            n_ctx = self._context_length(n_ctx, native)
        self.n_batch = max(min(n_ctx, n_batch), 1)
        self.n_threads = n_threads or os.cpu_count() or 1
        self.n_threads_batch = n_threads_batch or self.n_threads
        self.model_params = ModelParams(
            n_gpu_layers=0x7FFFFFFF if n_gpu_layers == -1 else n_gpu_layers,
            split_mode=split_mode,
            main_gpu=main_gpu,
            tensor_split=tensor_split,
            vocab_only=vocab_only,
            use_mmap=use_mmap,
            use_mlock=use_mlock,
        )
        self.context_params = ContextParams(
            n_ctx=n_ctx,
            n_batch=self.n_batch,
            n_ubatch=min(self.n_batch, n_ubatch),
            n_seq_max=n_parallel,
            n_threads=self.n_threads,
            n_threads_batch=self.n_threads_batch,
            rope_scaling_type=-1 if rope_scaling_type is None else rope_scaling_type,
            pooling_type=pooling_type,
            attention_type=attention_type,
            rope_freq_base=rope_freq_base,
            rope_freq_scale=rope_freq_scale,
            yarn_ext_factor=yarn_ext_factor,
            yarn_attn_factor=yarn_attn_factor,
            yarn_beta_fast=yarn_beta_fast,
            yarn_beta_slow=yarn_beta_slow,
            yarn_orig_ctx=yarn_orig_ctx,
            embeddings=embedding,
            offload_kqv=offload_kqv,
            flash_attn=flash_attn,
            op_offload=op_offload,
            swa_full=swa_full,
            no_perf=no_perf,
            type_k=type_k if isinstance(type_k, int) else None,
            type_v=type_v if isinstance(type_v, int) else None,
        )
        lookup = isinstance(draft_model, LlamaPromptLookupDecoding)
        self._logits_all = logits_all
        self._init_evaluation(n_ctx, n_threads)
        self._closed = False
        self._ctx = LlamaContext(self)
        self._batch = LlamaBatch(n_tokens=self.n_batch)
        self._n_vocab = self.n_vocab()
        self._token_nl = self.token_nl()
        self._token_eos = self.token_eos()
        self._is_recurrent = native is not None and native.has_state and not native.has_cache
        self._is_hybrid = native is not None and native.has_state and native.has_cache
        self._choose_chat_format()
        self._engine_settings: _oxidize.EngineSettings = {
            "n_ctx": n_ctx,
            # A small batch would only make long prompts slow.
            "n_batch": max(self.n_batch, 512),
            "n_parallel": n_parallel,
            "n_threads": n_threads,
            "type_k": parameters.kv_type(type_k),
            "type_v": parameters.kv_type(type_v),
            "deterministic": deterministic,
            "draft_ngram": lookup,
            "draft_tokens": draft_model.num_pred_tokens if isinstance(draft_model, LlamaPromptLookupDecoding) else None,
        }
        self._engine_lock = threading.Lock()
        if native is not None and native.generates_text and not embedding:
            try:
                self._running_engine()
            except BaseException:
                self.close()
                raise
        _log.drain()

    def _load(self, given: dict[str, Any]) -> LlamaModel:
        overrides = parameters.metadata_overrides(self.kv_overrides)
        rope = parameters.rope_settings(given)
        try:
            if given["vocab_only"]:
                return LlamaModel(None, _oxidize.Tokenizer.open(self.model_path))
            native = _oxidize.Model(
                self.model_path,
                mmap=given["use_mmap"],
                adapters=[] if self.lora_path is None else [(self.lora_path, self.lora_scale)],
                overrides=overrides,
                rope=rope,
            )
            if rope is not None and rope.get("scaling_type") is None:
                own = _oxidize.Model(self.model_path, overrides=overrides)
                parameters.warn_of_rope("rope_freq_base", given["rope_freq_base"], own.rope_freq_base)
                parameters.warn_of_rope("rope_freq_scale", given["rope_freq_scale"], own.rope_freq_scale)
            return LlamaModel(native, native.tokenizer())
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"Failed to load model from file: {self.model_path}: {error}") from error

    @staticmethod
    def _context_length(n_ctx: int, native: _oxidize.Model) -> int:
        trained = native.n_ctx_train
        if n_ctx > trained:
            warnings.warn(
                f"n_ctx={n_ctx} is more than the {trained} tokens that the model was trained on; using {trained}",
                RuntimeWarning,
                stacklevel=3,
            )
        return min(n_ctx, trained) or trained

    def _choose_chat_format(self) -> None:
        from . import llama_chat_format as formats

        templates = {
            key[len("tokenizer.") :]: template
            for key, template in self.metadata.items()
            if key.startswith("tokenizer.chat_template.")
        }
        native = self._model.native
        default = self.metadata.get("tokenizer.chat_template")
        if default is None and native is not None:
            # Directories have their template in a file.
            default = native.chat_template()
        if default is not None:
            templates["chat_template.default"] = default
        for name, template in templates.items():
            self._chat_handlers[name] = formats.template_handler(template)
        if self.chat_format is None and self.chat_handler is None:
            guessed = None
            if default is not None:
                guessed = formats.guess_chat_format_from_gguf_metadata({"tokenizer.chat_template": default})
                self._chat_handlers[guessed or "chat_template.default"] = formats.template_handler(default)
                guessed = guessed or "chat_template.default"
            self.chat_format = guessed or "llama-2"

    # Life.

    def _running_engine(self) -> _oxidize.Engine:
        """The engine, started when it is first needed."""
        with self._engine_lock:
            self._check_open()
            if self._engine is None:
                self._engine = _oxidize.Engine(self._model.require(), self._engine_settings)
            return self._engine

    def close(self) -> None:
        """Gives the memory back at once. Answers that are still read end with a RuntimeError."""
        if self._closed:
            return
        self._closed = True
        if self._engine is not None:
            self._engine.close()
        with self._embedder_lock:
            if self._embedder is not None:
                self._embedder.close()
                self._embedder = None
        self._close_evaluation()
        self._model.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._arguments)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"n_ctx={self._n_ctx}"
        return f"Llama({self.model_path!r}, {state})"

    def _repr_html_(self) -> str:
        from .._notebook import model_table, table

        native = None if self._closed else self._model.native
        if native is None:
            return table({"model": self.model_path, "state": "closed" if self._closed else "vocabulary only"})
        return model_table(self.model_path, native, self._n_ctx)

    # Facts.

    @property
    def ctx(self) -> int | None:
        """Handle of the context, for the functions of ``llama_cpp``."""
        return self._ctx.ctx

    @property
    def model(self) -> int | None:
        """Handle of the model, for the functions of ``llama_cpp``."""
        return None if self._closed else self._model.model

    def n_ctx(self) -> int:
        """Maximum tokens of a request, prompt and answer together."""
        return self._n_ctx

    def n_embd(self) -> int:
        """Width of embeddings."""
        return self._model.n_embd()

    def n_vocab(self) -> int:
        """Number of tokens."""
        return self._model.n_vocab()

    def tokenizer(self) -> LlamaTokenizer:
        """The model's tokenizer."""
        return LlamaTokenizer(self)

    def token_eos(self) -> int:
        """The token that ends a text; −1 if there is none."""
        return self._model.token_eos()

    def token_bos(self) -> int:
        """The token that begins a text; −1 if there is none."""
        return self._model.token_bos()

    def token_nl(self) -> int:
        """The token of a newline."""
        return self._model.token_nl()

    def pooling_type(self) -> int:
        """Pooling of embeddings, numbered as in llama.cpp."""
        given = self.context_params.pooling_type
        if given >= 0:
            return given
        return self._model.require().pooling or 0

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Keeps the states of completions in a cache, besides the engine's own."""
        self.cache = cache

    # Embeddings.

    def create_embedding(self, input: str | list[str], model: str | None = None) -> CreateEmbeddingResponse:
        """Embeddings in the shape of OpenAI's API."""
        texts = input if isinstance(input, list) else [input]
        embeddings, n_tokens = self.embed(texts, return_count=True)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": embedding, "index": index}
                for index, embedding in enumerate(embeddings)
            ],
            "model": model if model is not None else self.model_path,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The embedding of a text, or a list of those of several; one vector per token without pooling."""
        self._check_open()
        texts = [input] if isinstance(input, str) else list(input)
        limit = self._n_ctx
        tokens = [self.tokenize(text.encode("utf-8")) for text in texts]
        if truncate:
            tokens = [text[:limit] for text in tokens]
        for text in tokens:
            if len(text) > limit:
                raise ValueError(f"Requested tokens ({len(text)}) exceed batch size of {limit}")
        pooling = self.pooling_type()
        with self._embedder_lock:
            self._check_open()
            if self._embedder is None:
                self._embedder = _oxidize.Embedder(
                    self._model.require(), limit, max(self.n_batch, 512), self._sequence_threads, pooling
                )
            embedder = self._embedder
        vectors: list[Any] = embedder.embed(tokens) if tokens else []
        if normalize:
            vectors = [[_normalized(vector) for vector in rows] for rows in vectors]
        if pooling != 0:
            vectors = [rows[0] for rows in vectors]
        _log.drain()
        output = vectors[0] if isinstance(input, str) else vectors
        return (output, sum(map(len, tokens))) if return_count else output

    # Completions.

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = [],
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[Any, float] | None = None,
    ) -> CreateCompletionResponse | Iterator[CreateCompletionResponse]:
        """Continues a text.

        ``max_tokens`` None or 0 is up to the end of the context; log probabilities need no ``logits_all``. With
        ``stream``, an iterator of chunks; leaving it ends the request.
        """
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repeat_penalty": repeat_penalty,
            "top_k": top_k,
            "tfs_z": tfs_z,
            "mirostat_mode": mirostat_mode,
            "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta,
        }
        writer = self._begin(
            prompt,
            settings,
            suffix=suffix,
            max_tokens=max_tokens,
            logprobs=logprobs,
            echo=echo,
            stop=stop,
            seed=seed,
            model=model,
            stopping_criteria=stopping_criteria,
            logits_processor=logits_processor,
            grammar=grammar,
            logit_bias=logit_bias,
        )
        return writer.chunks() if stream else writer.whole()

    def __call__(
        self,
        prompt: str,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = [],
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[Any, float] | None = None,
    ) -> CreateCompletionResponse | Iterator[CreateCompletionResponse]:
        """Continues a text, as :meth:`create_completion` does."""
        return self.create_completion(
            prompt=prompt,
            suffix=suffix,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            logprobs=logprobs,
            echo=echo,
            stop=stop,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            repeat_penalty=repeat_penalty,
            top_k=top_k,
            stream=stream,
            seed=seed,
            tfs_z=tfs_z,
            mirostat_mode=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            model=model,
            stopping_criteria=stopping_criteria,
            logits_processor=logits_processor,
            grammar=grammar,
            logit_bias=logit_bias,
        )

    def create_chat_completion(
        self,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = [],
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: dict[Any, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> CreateChatCompletionResponse | Iterator[CreateChatCompletionStreamResponse]:
        """Answers a conversation.

        Tools, ``tool_choice`` in all its forms, and ``response_format`` with a schema in either shape are honored.
        """
        from . import llama_chat_format as formats

        name = self.chat_format or ""
        handler = self.chat_handler or self._chat_handlers.get(name) or formats.get_chat_completion_handler(name)
        return handler(
            llama=self,
            messages=messages,
            functions=functions,
            function_call=function_call,
            tools=tools,
            tool_choice=tool_choice,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            typical_p=typical_p,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            stream=stream,
            stop=stop,
            seed=seed,
            response_format=response_format,
            max_tokens=max_tokens,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repeat_penalty=repeat_penalty,
            tfs_z=tfs_z,
            mirostat_mode=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            model=model,
            logits_processor=logits_processor,
            grammar=grammar,
            logit_bias=logit_bias,
        )

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """Answers a conversation with the classes of the package openai."""
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError:
            raise ImportError(
                "To use create_chat_completion_openai_v1, you must install the openai package. "
                "You can install it with `pip install openai`."
            ) from None
        answer: Any = self.create_chat_completion(*args, **kwargs)
        if kwargs.get("stream", False):
            return (ChatCompletionChunk(**chunk) for chunk in answer)
        return ChatCompletion(**answer)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Llama:
        """Loads the file of a repository of the Hugging Face hub that matches ``filename``, a name or a pattern.

        Downloads it with the package huggingface_hub; without that, the file must be in the hub's local cache.
        """
        from ._hub import find_model

        path = find_model(repo_id, filename, additional_files or [], local_dir, cache_dir)
        return cls(model_path=path, **kwargs)


def _normalized(vector: list[float]) -> list[float]:
    length = sum(x * x for x in vector) ** 0.5
    return [x / length for x in vector] if length > 0 else vector
