"""The names of llama-cpp-python, and the functions of llama.cpp below them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from oxidize import Llama
from oxidize import llama_cpp as shim


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_class_whatever_path_imports_it() -> None:
    run(
        """
import oxidize
oxidize.install_as_llama_cpp()
import llama_cpp, llama_cpp.llama, llama_cpp.llama_cpp, llama_cpp.llama_chat_format as formats
from llama_cpp.llama_grammar import LlamaGrammar
from llama_cpp import Llama, LogitsProcessorList, LlamaState
assert Llama is oxidize.Llama is llama_cpp.llama.Llama
assert llama_cpp.llama_cpp.llama_token_to_piece is llama_cpp.llama_token_to_piece
assert formats.LlamaChatCompletionHandlerRegistry
oxidize.install_as_llama_cpp()
"""
    )


def test_the_real_package_is_not_replaced_once_it_is_loaded() -> None:
    out = run(
        """
import sys, types, oxidize
sys.modules["llama_cpp"] = types.ModuleType("llama_cpp")
try:
    oxidize.install_as_llama_cpp()
except RuntimeError as error:
    print(error)
"""
    )
    assert "imported already" in out


def test_importing_is_lazy() -> None:
    run("import sys, oxidize; assert 'numpy' not in sys.modules and 'oxidize.llama_cpp' not in sys.modules")
    run("import sys; from oxidize import Llama; assert 'numpy' not in sys.modules and 'asyncio' not in sys.modules")


def test_a_completion_needs_no_numpy(tiny_path: str) -> None:
    run(
        f"""
import sys
sys.modules["numpy"] = None
from oxidize import Llama
llm = Llama({tiny_path!r}, n_ctx=64)
assert llm("Hi", max_tokens=2, logprobs=1)["usage"]["completion_tokens"] > 0
assert llm.create_chat_completion([dict(role="user", content="Hi")], max_tokens=2)
assert llm.embed("Hi") and llm.tokenize(b"Hi")
"""
    )


def test_other_functions_say_that_they_are_missing() -> None:
    for module in (shim, shim.llama_cpp):
        with pytest.raises(AttributeError, match="llama_sampler_chain_init"):
            module.llama_sampler_chain_init
    with pytest.raises(AttributeError):
        shim.nonsense


def test_vocabulary(smol: Llama) -> None:
    vocab = shim.llama_model_get_vocab(smol.model)
    assert shim.llama_vocab_n_tokens(vocab) == smol.n_vocab()
    assert shim.llama_vocab_eos(vocab) == smol.token_eos()
    assert shim.llama_vocab_is_eog(vocab, smol.token_eos())
    (token,) = smol.tokenize(b" world", add_bos=False)
    buffer = ctypes.create_string_buffer(16)
    assert shim.llama_token_to_piece(vocab, token, buffer, 16, 0, True) == 6
    assert buffer.value == b" world"
    assert shim.llama_token_to_piece(vocab, token, buffer, 3, 0, True) == -6
    assert shim.llama_token_get_attr(vocab, smol.token_eos()) & shim.LLAMA_TOKEN_ATTR_CONTROL
    assert shim.llama_token_get_attr(vocab, token) == shim.LLAMA_TOKEN_ATTR_NORMAL
    with pytest.raises(ValueError, match="handle"):
        shim.llama_vocab_n_tokens(12345)


def test_llama_tokenize_is_a_c_function(smol: Llama) -> None:
    # llguidance calls it by its address, so that ctypes' conversions do not help.
    address = ctypes.cast(shim._lib.llama_tokenize, ctypes.c_void_p).value
    assert address
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int32),
        ctypes.c_int32,
        ctypes.c_bool,
        ctypes.c_bool,
    )
    call = signature(address)
    vocab = shim.llama_model_get_vocab(smol.model)
    text = "Hello <|im_end|> 世界".encode()
    room = (ctypes.c_int32 * 32)()
    for special in (False, True):
        count = call(vocab, text, len(text), room, 32, False, special)
        assert list(room[:count]) == smol.tokenize(text, add_bos=False, special=special)
        assert call(vocab, text, len(text), None, 0, False, special) == -count
    failure = -(2**31)
    assert call(12345, text, len(text), room, 32, False, False) == failure
    assert call(None, text, len(text), room, 32, False, False) == failure
    assert call(vocab, None, 5, room, 32, False, False) == failure
    assert call(vocab, text, -1, room, 32, False, False) == failure
    assert call(vocab, b"\xff\xfe", 2, room, 32, False, False) > 0
    assert call(vocab, None, 0, None, 0, False, False) == 0


def test_decoding_as_guidance_does(smol_path: str) -> None:
    with Llama(smol_path, n_ctx=64, logits_all=True) as llm:
        tokens = llm.tokenize(b"The capital of France")
        more = llm.tokenize(b" is", add_bos=False)
        batch = shim.llama_batch_init(llm.n_batch, 0, 1)

        def decode(ids: list[int], start: int) -> Any:
            batch.n_tokens = len(ids)
            for index, token in enumerate(ids):
                batch.token[index], batch.pos[index] = token, start + index
                batch.seq_id[index][0], batch.n_seq_id[index] = 0, 1
                batch.logits[index] = index == len(ids) - 1
            assert shim.llama_decode(llm.ctx, batch) == 0
            logits = shim.llama_get_logits(llm.ctx)
            return np.ctypeslib.as_array(logits, shape=(llm.n_vocab(),)).copy()

        decode(tokens, 0)
        stepwise = decode(more, len(tokens))
        assert llm.detokenize([int(stepwise.argmax())]) == b" Paris"
        memory = shim.llama_get_memory(llm.ctx)
        assert shim.llama_memory_seq_rm(memory, 0, 1, -1)
        whole = decode([*tokens[1:], *more], 1)
        assert np.allclose(whole, stepwise, atol=0.1)
        batch.n_tokens, batch.pos[0] = 1, 1000
        assert shim.llama_decode(llm.ctx, batch) == 1
        shim.llama_batch_free(batch)
        handle = llm.ctx
    with pytest.raises(ValueError, match="handle"):
        shim.llama_decode(handle, batch)
    assert llm.ctx is None and llm.model is None


def test_batches_have_the_layout_of_llama_cpp() -> None:
    offsets = {name: getattr(shim.llama_batch, name).offset for name, _ in shim.llama_batch._fields_}
    assert offsets == {"n_tokens": 0, "token": 8, "embd": 16, "pos": 24, "n_seq_id": 32, "seq_id": 40, "logits": 48}
    assert ctypes.sizeof(shim.llama_batch) == 56


ATTRIBUTES = """
create_completion create_chat_completion create_chat_completion_openai_v1 embed create_embedding tokenize detokenize eval
sample generate reset save_state load_state set_cache set_seed n_ctx n_vocab n_embd token_bos token_eos token_nl tokenizer
pooling_type from_pretrained close logits_to_logprobs longest_token_prefix
model_path n_batch n_threads context_params model_params verbose metadata n_tokens input_ids scores eval_tokens eval_logits
_input_ids _scores cache chat_format chat_handler _chat_handlers tokenizer_ draft_model lora_path ctx model _model _ctx
_batch _stack
"""
MODULE = """
Llama LlamaGrammar LogitsProcessor LogitsProcessorList StoppingCriteria StoppingCriteriaList LlamaRAMCache LlamaDiskCache
LlamaCache LlamaState LlamaTokenizer LlamaHFTokenizer LlamaDraftModel
llama_model_get_vocab llama_token_to_piece llama_vocab_n_tokens llama_vocab_eos llama_token_get_attr
LLAMA_TOKEN_ATTR_CONTROL LLAMA_TOKEN_ATTR_USER_DEFINED llama_vocab_p llama_batch_init llama_batch_free llama_decode
llama_get_logits llama_get_memory llama_memory_seq_rm llama_backend_init llama_supports_gpu_offload llama_supports_mmap
llama_max_devices llama_print_system_info llama_n_ctx llama_vocab_is_eog llama_log_set llama_tokenize llama_batch
"""
FORMATS = """
llama-2 llama-3 alpaca qwen vicuna oasst_llama baichuan-2 baichuan openbuddy redpajama-incite snoozy phind intel open-orca
mistrallite zephyr pygmalion chatml mistral-instruct chatglm3 openchat saiga gemma functionary functionary-v1 functionary-v2
chatml-function-calling
"""


def test_every_name_that_packages_use_is_there(tiny: Llama) -> None:
    assert [name for name in ATTRIBUTES.split() if not hasattr(tiny, name)] == []
    assert [name for name in MODULE.split() if not hasattr(shim, name)] == []
    from oxidize.llama_cpp.llama_chat_format import get_chat_completion_handler

    for name in FORMATS.split():
        assert callable(get_chat_completion_handler(name))


def test_defaults_are_those_of_llama_cpp_python() -> None:
    import inspect

    def defaults(method: Any) -> dict[str, Any]:
        return {name: parameter.default for name, parameter in inspect.signature(method).parameters.items()}

    completion, chat = defaults(Llama.create_completion), defaults(Llama.create_chat_completion)
    assert (completion["max_tokens"], completion["temperature"]) == (16, 0.8)
    assert (chat["max_tokens"], chat["temperature"]) == (None, 0.2)
    assert defaults(Llama.__call__) == completion
    model = defaults(Llama.__init__)
    assert (model["n_ctx"], model["n_batch"], model["n_gpu_layers"], model["last_n_tokens_size"]) == (512, 512, 0, 64)
    assert (model["yarn_ext_factor"], model["yarn_beta_fast"], model["rope_scaling_type"]) == (-1.0, 32.0, -1)
