"""Evaluation step by step, states and caches."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from oxidize import Llama, LlamaDiskCache, LlamaRAMCache
from oxidize.llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

PROMPT = b"The quick brown fox jumps over the lazy dog. The quick"


def greedy(llm: Llama, tokens: list[int], n: int = 6) -> list[int]:
    return list(itertools.islice(llm.generate(tokens, temp=0.0), n))


def test_generate_equals_the_engine(smol: Llama) -> None:
    tokens = smol.tokenize(PROMPT)
    answer: Any = smol(tokens, max_tokens=6, temperature=0)
    assert smol.detokenize(greedy(smol, tokens)).decode() == answer["choices"][0]["text"]
    assert smol.n_tokens == len(tokens) + 5
    assert list(smol.eval_tokens)[: len(tokens)] == tokens


def test_sent_tokens_are_kept_as_far_as_they_come_true(tiny: Llama) -> None:
    tokens = tiny.tokenize(b"Hello")
    right = greedy(tiny, tokens)
    tiny.reset()
    steps = tiny.generate(tokens, temp=0.0)
    assert next(steps) == right[0]
    wrong = (right[2] + 1) % tiny.n_vocab()
    assert steps.send([right[1], wrong]) == right[1]
    assert tiny._input_ids.tolist() == [*tokens, right[0], right[1], wrong]
    assert next(steps) == right[2]
    assert next(steps) == right[3]
    assert tiny._input_ids.tolist() == [*tokens, *right[:3]]


def test_arrays_can_be_assigned(tiny: Llama) -> None:
    tokens = tiny.tokenize(b"Hello there, you")
    expected = greedy(tiny, tokens)
    tiny.reset()
    tiny.input_ids = np.zeros((tiny.n_ctx(),), dtype=np.intc)
    tiny.input_ids[: len(tokens) - 1] = tokens[:-1]
    tiny.n_tokens = len(tokens) - 1
    tiny.eval(tokens[-1:])
    assert tiny.sample(temp=0.0) == expected[0]
    with pytest.raises(ValueError, match="exceed context window"):
        tiny.eval([1] * 1000)


def test_scores_have_the_shape_of_llama_cpp_python(tiny_path: str) -> None:
    with Llama(tiny_path, n_ctx=64, n_batch=16, logits_all=True) as llm:
        llm.eval([5, 6, 7])
        assert llm.scores.shape == (64, llm.n_vocab()) and len(llm.eval_logits) == 3
        one = llm.scores[1].copy()
        llm.reset()
        llm.eval([5, 6])
        assert np.allclose(llm.scores[1], one, atol=1e-2)
    with Llama(tiny_path, n_ctx=64, n_batch=16) as llm:
        llm.eval([5, 6, 7])
        assert llm.scores.shape == (16, llm.n_vocab()) and llm._scores[-1].any()


def test_states(tiny_path: str) -> None:
    with Llama(tiny_path, n_ctx=128) as llm, Llama(tiny_path, n_ctx=128) as other:
        tokens = llm.tokenize(b"Hello there, how are you?")
        expected = greedy(llm, tokens)
        llm.reset()
        llm.eval(tokens)
        state = llm.save_state()
        other.eval(tokens[:3])
        other.load_state(state)
        assert other.n_tokens == len(tokens)
        assert greedy(other, tokens) == expected
        state.llama_state = b"not a state"
        with pytest.raises(RuntimeError, match="^Failed to set llama state data$"):
            other.load_state(state)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_caches(tiny_path: str, tmp_path: Any, kind: str) -> None:
    cache = LlamaRAMCache() if kind == "ram" else LlamaDiskCache(str(tmp_path / "cache"))
    with pytest.raises(KeyError, match="Key not found"):
        cache[[1, 2]]
    with Llama(tiny_path, n_ctx=128) as llm:
        expected: Any = llm("Hello there", max_tokens=5, temperature=0)
        llm.set_cache(cache)
        llm("Hello there", max_tokens=5, temperature=0)
        assert llm.tokenize(b"Hello there") in cache and cache.cache_size > 0
    with Llama(tiny_path, n_ctx=128) as llm:
        llm.set_cache(cache)
        loads: list[Any] = []
        load = llm.load_state
        llm.load_state = lambda state: loads.append(state) or load(state)  # type: ignore[method-assign]
        again: Any = llm("Hello there", max_tokens=5, temperature=0)
        assert len(loads) == 1
        assert again["choices"][0]["text"] == expected["choices"][0]["text"]
    cache.capacity_bytes = 1
    with Llama(tiny_path, n_ctx=128) as llm:
        llm.eval([1, 2, 3])
        cache[[1, 2, 3]] = llm.save_state()
    assert cache.cache_size == 0


def test_a_full_disk_leaves_no_half_a_state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LlamaDiskCache(str(tmp_path))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oxidize.llama_cpp.llama_cache.pickle.dump", full)
    with pytest.raises(OSError, match="No space left"):
        cache[[1]] = None  # type: ignore[assignment]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of processes")
def test_a_disk_without_room_leaves_the_cache_as_it_was(tiny_path: str, tmp_path: Any) -> None:
    # A limit on the size of files fails in the middle of a write, as a full disk does.
    program = f"""
import resource
from oxidize import Llama, LlamaDiskCache
cache = LlamaDiskCache({str(tmp_path)!r})
with Llama({tiny_path!r}, n_ctx=64) as llm:
    llm.eval([5])
    cache[[5]] = llm.save_state()
    llm.eval(list(range(6, 46)))
    state = llm.save_state()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        cache[[5, *range(6, 46)]] = state
    except OSError as error:
        print("OSError", cache.cache_size > 0, cache[[5]].n_tokens)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["OSError", "True", "1"]
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".state"


def test_replaced_steps_are_used(tiny: Llama) -> None:
    expected: Any = tiny("Hello", max_tokens=4, temperature=0)
    calls: list[int] = []
    original = tiny.sample
    tiny.sample = lambda *a, **k: calls.append(1) or original(*a, **k)  # type: ignore[method-assign]
    answer: Any = tiny("Hello", max_tokens=4, temperature=0)
    assert len(calls) == 4 and answer["choices"][0]["text"] == expected["choices"][0]["text"]


class _Fixed(LlamaDraftModel):
    """Proposes the same tokens, right or wrong."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        return np.array(self.tokens, dtype=np.intc)


def test_drafts_do_not_change_answers(tiny_path: str, tiny: Llama) -> None:
    tokens = tiny.tokenize(b"Hello there, how")
    expected: Any = tiny(tokens, max_tokens=12, temperature=0)
    right = greedy(tiny, tokens, 12)
    for draft in (_Fixed(right[1:4]), _Fixed([1, 2]), LlamaPromptLookupDecoding(num_pred_tokens=3)):
        with Llama(tiny_path, n_ctx=128, draft_model=draft) as llm:
            answer: Any = llm(tokens, max_tokens=12, temperature=0)
            assert answer["choices"][0]["text"] == expected["choices"][0]["text"]


def test_recurrent_models_start_over(golden: Any) -> None:
    with Llama(str(golden / "falcon-mamba" / "model.gguf"), n_ctx=64) as llm:
        assert llm._is_recurrent and not llm._is_hybrid
        tokens = [5, 6, 7, 8, 9]
        expected = greedy(llm, tokens, 4)
        llm.reset()
        llm.eval([5, 6, 1])
        assert greedy(llm, tokens, 4) == expected
        state = llm.save_state()
        llm.eval([1, 2])
        llm.load_state(state)
        assert greedy(llm, tokens, 4) == expected
