"""`Llama`: completions, embeddings, errors and threads."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
from oxidize import Llama, LlamaGrammar, LogitsProcessorList, StoppingCriteriaList

PROMPT = "The capital of France is"


def text_of(completion: Any) -> str:
    return completion["choices"][0]["text"]


def test_a_completion_is_a_plain_dictionary(smol: Llama) -> None:
    completion: Any = smol(PROMPT, max_tokens=4, temperature=0)
    assert set(completion) == {"id", "object", "created", "model", "choices", "usage"}
    assert completion["id"].startswith("cmpl-")
    assert completion["object"] == "text_completion"
    assert completion["model"] == smol.model_path
    (choice,) = completion["choices"]
    assert set(choice) == {"text", "index", "logprobs", "finish_reason"}
    assert choice["text"].startswith(" Paris")
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    n_prompt = len(smol.tokenize(PROMPT.encode()))
    assert completion["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": 4,
        "total_tokens": n_prompt + 4,
    }


def test_chunks_join_to_the_whole(smol: Llama) -> None:
    whole: Any = smol(PROMPT, max_tokens=12, temperature=0)
    chunks: Any = list(smol(PROMPT, max_tokens=12, temperature=0, stream=True))
    assert "".join(map(text_of, chunks)) == text_of(whole)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert text_of(chunks[-1]) == "" and chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all("usage" not in chunk for chunk in chunks)


def test_stop_strings_end_the_text_before_them(smol: Llama) -> None:
    completion: Any = smol("1, 2, 3, 4,", max_tokens=30, temperature=0, stop=[" 7"])
    assert text_of(completion) == " 5, 6,"
    assert completion["choices"][0]["finish_reason"] == "stop"


def test_seeds_repeat_answers_and_none_draws_the_next(smol: Llama) -> None:
    def answer(seed: int | None) -> str:
        return text_of(smol("Once", max_tokens=12, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed))

    assert answer(1) == answer(1)
    smol.set_seed(5)
    first = [answer(None), answer(None)]
    smol.set_seed(5)
    assert [answer(None), answer(None)] == first and first[0] != first[1]


def test_log_probabilities(smol: Llama) -> None:
    completion: Any = smol(PROMPT, max_tokens=3, temperature=0, logprobs=2)
    logprobs = completion["choices"][0]["logprobs"]
    assert logprobs["tokens"][0] == " Paris"
    assert logprobs["text_offset"][0] == len(PROMPT)
    assert logprobs["text_offset"][1] == len(PROMPT) + len(" Paris")
    for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert logprob <= 0 and top[token] == logprob and len(top) == 2
    # The definition: the logits of the same position, as a distribution.
    rows = Llama(smol.model_path, n_ctx=64, logits_all=True)
    rows.eval(smol.tokenize(PROMPT.encode()))
    expected = Llama.logits_to_logprobs(rows.scores[rows.n_tokens - 1])
    paris = smol.tokenize(b" Paris", add_bos=False)[0]
    assert logprobs["token_logprobs"][0] == pytest.approx(float(expected[paris]), abs=0.2)


def test_echo_has_the_prompt_and_its_log_probabilities(smol: Llama) -> None:
    completion: Any = smol(PROMPT, max_tokens=2, temperature=0, logprobs=1, echo=True)
    choice = completion["choices"][0]
    assert choice["text"].startswith(PROMPT)
    assert choice["logprobs"]["token_logprobs"][0] is None and choice["logprobs"]["top_logprobs"][0] is None
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_logit_bias_applies_with_and_without_a_processor(smol: Llama) -> None:
    banned = smol.tokenize(b" Paris", add_bos=False)[0]
    seen: list[int] = []

    def look(input_ids: Any, scores: Any) -> Any:
        seen.append(len(input_ids))
        return scores

    for processors in (None, LogitsProcessorList([look])):
        completion = smol(PROMPT, max_tokens=3, temperature=0, logit_bias={banned: -100.0}, logits_processor=processors)
        assert "Paris" not in text_of(completion)
    assert seen == [len(smol.tokenize(PROMPT.encode())) + index for index in range(3)]


def test_processors_and_criteria_get_numpy_arrays(smol: Llama) -> None:
    token = smol.tokenize(b" yes", add_bos=False)[0]

    def only(input_ids: Any, scores: Any) -> Any:
        assert input_ids.dtype == np.intc and scores.dtype == np.single and scores.shape == (smol.n_vocab(),)
        scores[:] = -np.inf
        scores[token] = 0.0
        return scores

    answer = smol("Well:", max_tokens=3, logits_processor=LogitsProcessorList([only]))
    assert text_of(answer) == " yes yes yes"
    ends = StoppingCriteriaList([lambda input_ids, logits: len(input_ids) >= 8])
    stopped: Any = smol("Once upon a time", max_tokens=40, temperature=0, stopping_criteria=ends)
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 8 - len(smol.tokenize(b"Once upon a time"))


def test_logits_that_are_not_numbers_raise(smol: Llama) -> None:
    def broken(input_ids: Any, scores: Any) -> Any:
        scores[0] = float("nan")
        return scores

    with pytest.raises(ValueError):
        smol(PROMPT, max_tokens=2, logits_processor=LogitsProcessorList([broken]))
    with pytest.raises(ValueError, match="shape"):
        smol(PROMPT, max_tokens=2, logits_processor=LogitsProcessorList([lambda ids, scores: scores[:5]]))


def test_grammars(smol: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "true" | "false"')
    assert text_of(smol("Is it?", grammar=grammar, seed=1)) in ("true", "false")
    with pytest.raises(ValueError):
        smol("x", grammar=LlamaGrammar.from_string("root ::= ("))
    look = LogitsProcessorList([lambda input_ids, scores: scores])
    assert text_of(smol("Is it?", grammar=grammar, seed=1, logits_processor=look)) in ("true", "false")


def test_embeddings(smol_path: str) -> None:
    with Llama(smol_path, n_ctx=64, embedding=True, pooling_type=1) as llm:
        answer = llm.create_embedding(["a cat", "a dog"])
        assert [entry["index"] for entry in answer["data"]] == [0, 1]
        assert answer["object"] == "list" and answer["data"][0]["object"] == "embedding"
        n_tokens = sum(len(llm.tokenize(text)) for text in (b"a cat", b"a dog"))
        assert answer["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        one = llm.embed("a cat")
        assert len(one) == llm.n_embd()
        # A batch rounds otherwise.
        two = np.array(answer["data"][0]["embedding"])
        assert np.dot(one, two) / np.linalg.norm(one) / np.linalg.norm(two) > 0.999
        assert np.linalg.norm(llm.embed("a cat", normalize=True)) == pytest.approx(1.0, abs=1e-4)
        with pytest.raises(ValueError, match="exceed batch size of 64"):
            llm.embed("word " * 100, truncate=False)
        assert len(llm.embed("word " * 100)) == llm.n_embd()
    # Without pooling, a vector for each token.
    with Llama(smol_path, n_ctx=64, verbose=False) as llm:
        rows = llm.embed("a cat")
        assert len(rows) == len(llm.tokenize(b"a cat")) and len(rows[0]) == llm.n_embd()


def test_tokens_are_of_bytes(smol: Llama) -> None:
    text = "Grüße, 世界! 🦀".encode()
    tokens = smol.tokenize(text, add_bos=False)
    assert smol.detokenize(tokens) == text
    assert b"".join(smol.detokenize([token], prev_tokens=tokens) for token in tokens) == text
    (end,) = smol.tokenize(b"<|im_end|>", add_bos=False, special=True)
    assert smol.detokenize([end]) == b"" and smol.detokenize([end], special=True) == b"<|im_end|>"
    assert len(smol.tokenize(b"<|im_end|>", add_bos=False)) > 1


def test_mistakes_raise_what_programs_expect(smol: Llama, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="^Model path does not exist: /nowhere.gguf"):
        Llama("/nowhere.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not a model")
    with pytest.raises(ValueError, match=f"^Failed to load model from file: {broken}"):
        Llama(str(broken))
    with pytest.raises(ValueError, match=r"^Requested tokens \(\d+\) exceed context window of 512"):
        smol("word " * 600)
    with pytest.raises(ValueError, match="temperature"):
        smol(PROMPT, temperature=float("nan"))
    with pytest.raises(TypeError):
        smol(PROMPT, temperature="hot")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="top_k"):
        smol(PROMPT, top_k=2**40)
    for token in (10**9, -1, 2**70):
        with pytest.raises(ValueError, match="prompt token"):
            smol([token])
        with pytest.raises(ValueError, match="token|logit_bias"):
            smol(PROMPT, logit_bias={token: 1.0})


def test_a_suffix_needs_tokens_for_it(tiny: Llama) -> None:
    assert tiny._model.native_tokenizer.infill("a", "b") is None
    with pytest.raises(ValueError, match="cannot fill in the middle"):
        tiny("a", suffix="b")


def test_max_tokens_is_cut_to_the_context(tiny: Llama) -> None:
    for max_tokens in (None, 0, -1, 10**6):
        answer: Any = tiny("Hello", max_tokens=max_tokens, temperature=0)
        assert answer["usage"]["total_tokens"] <= tiny.n_ctx()
    assert tiny("", max_tokens=1)["object"] == "text_completion"  # type: ignore[index]


def test_parameters_without_meaning_are_accepted_and_mentioned_once(
    tiny_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "oxidize"):
        for _ in range(2):
            Llama(tiny_path, n_ctx=64, use_mlock=True, n_gqa=8, f16_kv=True, wishful=1, n_gpu_layers=-1).close()
            Llama(tiny_path, n_ctx=64, n_gpu_layers=0).close()
    mentioned = [record.getMessage() for record in caplog.records]
    assert sum("use_mlock" in text for text in mentioned) == 1
    (layers,) = [text for text in mentioned if "n_gpu_layers" in text]
    assert layers == "n_gpu_layers=-1 has no effect: this build has only the CPU backend"
    assert sum("wishful" in text for text in mentioned) == 1
    assert not any("n_gqa" in text for text in mentioned)


def test_a_rope_base_replaces_the_models_own_with_a_warning(smol_path: str) -> None:
    with pytest.warns(RuntimeWarning, match="10000.*100000"):
        changed = Llama(smol_path, n_ctx=64, rope_freq_base=10000, rope_freq_scale=1, n_batch=8)
    own = Llama(smol_path, n_ctx=64, verbose=False)
    prompt = "The quick brown fox jumps over the lazy dog. The quick brown fox"
    answers = [text_of(llm(prompt, max_tokens=12, temperature=0)) for llm in (changed, own)]
    assert answers[0] != answers[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Llama(smol_path, n_ctx=64, rope_freq_base=100000).close()


def test_metadata_can_be_replaced(tiny_path: str) -> None:
    overrides: Any = {"llama.context_length": 48, "llama.rope.freq_base": 5000, "general.name": "other"}
    with Llama(tiny_path, n_ctx=0, kv_overrides=overrides, verbose=False) as llm:
        assert llm.n_ctx() == 48
        assert llm.metadata["llama.context_length"] == "48" and llm.metadata["general.name"] == "other"
        assert llm._model.require().rope_freq_base == 5000.0
    for wrong in ({"llama.context_length": "long"}, {"llama.context_length": [1]}, {"llama.context_length": 2**70}):
        with pytest.raises(ValueError, match="llama.context_length"):
            Llama(tiny_path, kv_overrides=wrong)  # type: ignore[arg-type]


def test_rope_parameters_change_the_logits_and_the_context(tiny_path: str) -> None:
    def logits(**parameters: Any) -> Any:
        with Llama(tiny_path, n_ctx=64, logits_all=True, verbose=False, **parameters) as llm:
            llm.eval(list(range(5, 45)))
            return llm.scores[39].copy()

    own = logits()
    yarn: Any = {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 32}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(logits(rope_scaling_type=0), own)
        linear = logits(rope_scaling_type=1, rope_freq_scale=0.25)
        assert not np.allclose(linear, own)
        found = [logits(**yarn), logits(**yarn, yarn_attn_factor=0.5), logits(**yarn, yarn_beta_slow=0.05)]
        assert all(not np.allclose(some, linear) and not np.allclose(some, own) for some in found)
        assert not np.allclose(found[0], found[1]) and not np.allclose(found[0], found[2])
        # Without extrapolation, all frequencies are interpolated.
        assert np.allclose(logits(**yarn, yarn_ext_factor=0.0), linear, atol=1e-3)
        trained = Llama(tiny_path, n_ctx=0).n_ctx()
        with Llama(tiny_path, n_ctx=4 * trained, rope_scaling_type=2, rope_freq_scale=0.25) as long:
            assert long.n_ctx() == 4 * trained
    with pytest.raises(ValueError, match="rope_scaling_type 9"):
        Llama(tiny_path, rope_scaling_type=9)
    for name in ("rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_beta_slow", "yarn_attn_factor"):
        with pytest.raises(ValueError, match=name):
            Llama(tiny_path, **{name: float("nan")})  # type: ignore[arg-type]


def test_infill_begins_with_the_suffix_if_asked(vocabularies: Any) -> None:
    path = str(vocabularies / "ggml-vocab-starcoder.gguf")
    orders = {}
    for suffix_first in (False, True):
        llm = Llama(path, vocab_only=True, spm_infill=suffix_first, verbose=False)
        text = llm.detokenize(llm._prompt_tokens("before", "after"), special=True).decode()
        orders[suffix_first] = text
    assert orders[False] == "<fim_prefix>before<fim_suffix>after<fim_middle>"
    assert orders[True] == "<fim_suffix>after<fim_prefix>before<fim_middle>"


def test_nothing_is_written_to_stdout(tiny_path: str) -> None:
    program = f"from oxidize import Llama; Llama({tiny_path!r}, n_ctx=64)('Hi', max_tokens=2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "" and done.stderr == ""


def test_threads_answer_as_they_would_alone(smol_path: str) -> None:
    with Llama(smol_path, n_ctx=128, deterministic=True) as llm:
        prompts = [f"Story number {index}:" for index in range(32)]
        alone = [text_of(llm(prompt, max_tokens=6, temperature=0)) for prompt in prompts[:4]]
        together: list[str | None] = [None] * len(prompts)

        def work(index: int) -> None:
            together[index] = text_of(llm(prompts[index], max_tokens=6, temperature=0))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together[:4] == alone and None not in together


def test_requests_with_processors_run_in_one_batch(smol_path: str) -> None:
    n_threads = 8
    calls: list[tuple[int, int]] = []
    all_queued = threading.Barrier(n_threads + 1)

    def processors(index: int) -> LogitsProcessorList:
        def look(input_ids: Any, scores: Any) -> Any:
            calls.append((index, threading.get_ident()))
            return scores

        return LogitsProcessorList([look])

    with Llama(smol_path, n_ctx=64, deterministic=True, verbose=False) as llm:
        ban = {token: -1000.0 for token in range(llm.n_vocab()) if llm._model.native_tokenizer.is_end(token)}

        def ask(index: int) -> str:
            options: Any = {"max_tokens": 12, "temperature": 0, "logit_bias": ban}
            return text_of(llm(f"Number {index} is", logits_processor=processors(index), **options))

        alone = [ask(index) for index in range(n_threads)]
        calls.clear()
        together: list[str | None] = [None] * n_threads

        def hold(input_ids: Any, scores: Any) -> Any:
            if len(input_ids) < 4:
                # The engine waits here, so that all requests are there when it goes on.
                all_queued.wait(60)
                time.sleep(0.5)
            return scores

        def work(index: int) -> None:
            all_queued.wait(60)
            together[index] = ask(index)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(n_threads)]
        for thread in threads:
            thread.start()
        llm("Hi", max_tokens=1, logits_processor=LogitsProcessorList([hold]))
        for thread in threads:
            thread.join()
    assert together == alone
    # One thread, the engine's, called them all, and in turn: each step has a token of each request.
    assert len({thread for _, thread in calls}) == 1
    assert len(calls) == 12 * n_threads
    middle = calls[4 * n_threads : 8 * n_threads]
    assert sorted(index for index, _ in middle) == sorted([*range(n_threads)] * 4)


def test_exceptions_of_processors_and_criteria_reach_the_caller(tiny: Llama) -> None:
    class Mistake(Exception):
        pass

    def fail(input_ids: Any, scores: Any) -> Any:
        if len(input_ids) >= 5:
            raise Mistake("of the caller")
        return scores

    for arguments in ({"logits_processor": [fail]}, {"stopping_criteria": StoppingCriteriaList([fail])}):
        with pytest.raises(Mistake, match="of the caller") as caught:
            tiny([1, 2, 3, 4, 5], max_tokens=9, **arguments)  # type: ignore[arg-type]
        assert caught.traceback[-1].name == "fail"
        with pytest.raises(Mistake):
            list(tiny([1, 2, 3, 4, 5], max_tokens=9, stream=True, **arguments))  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        tiny("Hello", max_tokens=2, logits_processor=[lambda ids, scores: None])  # type: ignore[list-item,return-value]
    assert tiny("Hello", max_tokens=1)


def test_a_processor_cannot_wait_for_its_own_model(tiny: Llama, tiny_path: str) -> None:
    def nested(input_ids: Any, scores: Any) -> Any:
        tiny("Hello", max_tokens=1)
        return scores

    with pytest.raises(RuntimeError, match="own model"):
        tiny("Hello", max_tokens=2, logits_processor=LogitsProcessorList([nested]))
    with Llama(tiny_path, n_ctx=64, verbose=False) as other:

        def ask_another(input_ids: Any, scores: Any) -> Any:
            assert other("Hello", max_tokens=1)
            assert tiny.tokenize(b"Hello") and tiny.detokenize([5]) is not None
            return scores

        assert tiny("Hello", max_tokens=2, logits_processor=LogitsProcessorList([ask_another]))


def test_a_processor_may_close_the_model(tiny_path: str) -> None:
    llm = Llama(tiny_path, n_ctx=64, verbose=False)

    def close(input_ids: Any, scores: Any) -> Any:
        llm.close()
        return scores

    with pytest.raises(RuntimeError, match="closed"):
        llm("Hello", max_tokens=8, logits_processor=LogitsProcessorList([close]))


def test_log_probabilities_are_those_after_the_processors(tiny: Llama) -> None:
    def only(input_ids: Any, scores: Any) -> Any:
        scores[:] = -np.inf
        scores[[7, 9]] = 0.0
        return scores

    answer: Any = tiny([1, 2, 3], max_tokens=2, logprobs=2, logits_processor=LogitsProcessorList([only]))
    for logprob in answer["choices"][0]["logprobs"]["token_logprobs"]:
        assert logprob == pytest.approx(np.log(0.5))


def test_a_closed_model_raises(tiny_path: str) -> None:
    llm = Llama(tiny_path, n_ctx=128)
    stream: Any = llm("Hello", max_tokens=100, stream=True)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(stream)
    for call in (lambda: llm("x"), lambda: llm.eval([1]), lambda: llm.embed("x"), lambda: llm.save_state()):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_closing_from_another_thread_ends_an_answer(tiny_path: str) -> None:
    llm = Llama(tiny_path, n_ctx=128)
    stream: Any = llm("Hello", max_tokens=0, stream=True, temperature=0)
    failure: list[BaseException] = []
    begun = threading.Event()

    def read() -> None:
        try:
            for _ in stream:
                begun.set()
                # Leaves the engine ahead of the reader.
                threading.Event().wait(0.01)
        except RuntimeError as error:
            failure.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    llm.close()
    thread.join(30)
    assert not thread.is_alive() and len(failure) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_an_error(tiny_path: str) -> None:
    program = f"""
import os, sys
from oxidize import Llama
llm = Llama({tiny_path!r}, n_ctx=64)
stream = llm("Hello", max_tokens=9, stream=True)
next(stream)
child = os.fork()
if child == 0:
    for call in (lambda: llm("x"), lambda: next(stream)):
        try:
            call()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            os._exit(1)
    del llm, stream
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
assert llm("x", max_tokens=1)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_interrupts(tiny_path: str) -> None:
    program = f"""
import signal, threading
from oxidize import Llama
llm = Llama({tiny_path!r}, n_ctx=128)
# No token ever ends this answer, so that only the signal does.
ban = {{token: float("-inf") for token in range(llm.n_vocab()) if llm._model.native_tokenizer.is_end(token)}}
def look(input_ids, scores):
    signal.raise_signal(signal.SIGINT)
    return scores
try:
    while True:
        llm("Hello", max_tokens=50, logits_processor=[look], logit_bias=ban)
except KeyboardInterrupt:
    print("interrupted")
stream = llm("Hello", max_tokens=0, stream=True)
signal.setitimer(signal.ITIMER_REAL, 0.2)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
try:
    while True:
        llm("Hello", max_tokens=0, logit_bias=ban)
except KeyboardInterrupt:
    print("interrupted")
print(llm("Hello", max_tokens=1)["usage"]["completion_tokens"])
from oxidize import Engine
engine = Engine({tiny_path!r})
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    while True:
        engine.generate(["Hello"] * 4, logit_bias=ban)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["interrupted", "interrupted", "1", "interrupted"]


def test_pickling_loads_the_file_again(tiny: Llama) -> None:
    with pickle.loads(pickle.dumps(tiny)) as copy:
        assert copy.n_ctx() == tiny.n_ctx()
        assert text_of(copy("Hi", max_tokens=4, temperature=0)) == text_of(tiny("Hi", max_tokens=4, temperature=0))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_memory_of_a_thousand_models_comes_back(tiny_path: str) -> None:
    def cycle(times: int) -> None:
        for _ in range(times):
            with Llama(tiny_path, n_ctx=64) as llm:
                llm("Hello", max_tokens=1)

    def resident() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    cycle(100)
    first = resident()
    cycle(900)
    assert resident() - first < 8 * 1024


def test_from_pretrained_finds_the_local_cache(tiny_path: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("model.Q4_K_M.gguf", "model.Q8_0.gguf"):
        (snapshot / name).symlink_to(tiny_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with Llama.from_pretrained("someone/tiny", "*Q8_0.gguf", n_ctx=64) as llm:
        assert llm.model_path.endswith("model.Q8_0.gguf")
    with pytest.raises(ValueError, match="Multiple files found in someone/tiny matching"):
        Llama.from_pretrained("someone/tiny", "*.gguf")
    with pytest.raises(ValueError, match="No file found in someone/tiny that match"):
        Llama.from_pretrained("someone/tiny", "*Q2_K.gguf")
    with pytest.raises(ImportError, match="huggingface-hub"):
        Llama.from_pretrained("someone/other", "*.gguf")
