"""Tests of llama-cpp-python 0.3.36 (MIT License, Copyright (c) 2023 Andrei Betlen), its import and models replaced.

They are those of its high-level interface: tokens, grammars, chat formats, drafts, states and caches. Its models are
downloads of gigabytes; here, transformers are SmolLM2, and recurrent and hybrid models those beside the checkout.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import oxidize.llama_cpp as llama_cpp
import oxidize.llama_cpp.llama_chat_format as llama_chat_format
import oxidize.llama_cpp.llama_types as llama_types
import pytest
from oxidize.llama_cpp.llama_chat_format import hf_tokenizer_config_to_chat_formatter
from oxidize.llama_cpp.llama_speculative import LlamaPromptLookupDecoding

FOX = "The quick brown fox jumps over the lazy dog. The quick brown fox"


def test_llama_cpp_version() -> None:
    assert llama_cpp.__version__


def test_llama_cpp_tokenization(vocabularies: Any) -> None:
    path = str(vocabularies / "ggml-vocab-llama-spm.gguf")
    llama = llama_cpp.Llama(model_path=path, vocab_only=True, verbose=False)
    assert llama
    assert llama._ctx.ctx is not None

    text = b"Hello World"
    tokens = llama.tokenize(text)
    assert tokens[0] == llama.token_bos()
    assert tokens == [1, 15043, 2787]
    assert llama.detokenize(tokens) == text

    tokens = llama.tokenize(text, add_bos=False)
    assert tokens[0] != llama.token_bos()
    assert tokens == [15043, 2787]
    assert llama.detokenize(tokens) != text

    text = b"Hello World</s>"
    tokens = llama.tokenize(text)
    assert tokens[-1] != llama.token_eos()
    assert tokens == [1, 15043, 2787, 829, 29879, 29958]

    tokens = llama.tokenize(text, special=True)
    assert tokens[-1] == llama.token_eos()
    assert tokens == [1, 15043, 2787, 2]

    text = b""
    tokens = llama.tokenize(text, add_bos=True, special=True)
    assert tokens[-1] != llama.token_eos()
    assert tokens == [llama.token_bos()]
    assert text == llama.detokenize(tokens)


def test_real_llama(smol_path: str) -> None:
    model: Any = llama_cpp.Llama(smol_path, n_ctx=32, n_batch=32, n_ubatch=32, logits_all=False, flash_attn=True)

    output = model.create_completion(
        "The capital of france is paris, 'true' or 'false'?:\n",
        max_tokens=4,
        top_k=50,
        top_p=0.9,
        temperature=0.8,
        seed=1337,
        grammar=llama_cpp.LlamaGrammar.from_string('root ::= "true" | "false"'),
    )
    assert output["choices"][0]["text"] in ("true", "false")

    tokens = model.tokenize(b"rot", add_bos=True, special=True)

    def logit_processor_func(input_ids: Any, logits: Any) -> Any:
        for token in tokens:
            logits[token] *= 1000
        return logits

    output = model.create_completion(
        "The capital of france is par",
        max_tokens=4,
        top_k=50,
        top_p=0.9,
        temperature=0.8,
        seed=1337,
        logits_processor=llama_cpp.LogitsProcessorList([logit_processor_func]),
    )
    assert output["choices"][0]["text"].lower().startswith("rot")

    model.set_seed(1337)
    state = model.save_state()

    def number() -> str:
        output = model.create_completion(
            "Pick a number from 1 to 10?:\n",
            max_tokens=4,
            top_k=50,
            top_p=0.9,
            temperature=1.0,
            grammar=llama_cpp.LlamaGrammar.from_string(
                'root ::= "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "10"'
            ),
        )
        return output["choices"][0]["text"]

    # There, two numbers; two may be equal by chance.
    numbers = [number() for _ in range(6)]
    model.load_state(state)
    assert len(set(numbers)) > 1
    assert [number() for _ in range(6)] == numbers


def test_real_llama_repeated_prompt_cache(smol_path: str) -> None:
    model: Any = llama_cpp.Llama(smol_path, n_ctx=32, n_batch=32, n_ubatch=32, verbose=False, deterministic=True)
    outputs = [model.create_completion(FOX, max_tokens=6, temperature=0.0, seed=1337) for _ in range(2)]
    assert outputs[0]["choices"][0]["text"] == outputs[1]["choices"][0]["text"] != ""


# A transformer, a recurrent and a hybrid model.
CASES = [("smol", False, False), ("falcon-mamba", True, False), ("falcon-h1", False, True)]


@pytest.fixture(params=CASES, ids=[name for name, *_ in CASES])
def case(request: Any) -> tuple[str, bool, bool]:
    name, is_recurrent, is_hybrid = request.param
    if name == "smol":
        return request.getfixturevalue("smol_path"), is_recurrent, is_hybrid
    return str(request.getfixturevalue("golden") / name / "model.gguf"), is_recurrent, is_hybrid


def create(case: tuple[str, bool, bool]) -> Any:
    path, is_recurrent, is_hybrid = case
    model = llama_cpp.Llama(path, n_ctx=64, n_batch=64, n_ubatch=64, logits_all=False, verbose=False)
    assert model._is_recurrent is is_recurrent
    assert model._is_hybrid is is_hybrid
    return model


def generate(model: Any, tokens: Any, max_tokens: int = 3) -> list[int]:
    return list(itertools.islice(model.generate(tokens, temp=0.0), max_tokens))


def test_prompt_cache_reset_handles_history_edit(case: Any) -> None:
    model = create(case)
    first_tokens = model.tokenize(b"The quick brown fox", add_bos=True, special=True)
    second_tokens = model.tokenize(b"The slow brown fox", add_bos=True, special=True)
    assert first_tokens != second_tokens
    assert first_tokens[0] == second_tokens[0]
    for prompt in ("The quick brown fox", "The slow brown fox"):
        output = model.create_completion(prompt, max_tokens=1, temperature=0.0)
        assert isinstance(output["choices"][0]["text"], str)


def test_exact_cached_prompt_reuse_matches_fresh(case: Any) -> None:
    fresh = create(case)
    tokens = fresh.tokenize(b"The quick brown fox", add_bos=True, special=True)
    expected_tokens = generate(fresh, tokens)
    cached = create(case)
    cached.eval(tokens)
    assert cached.n_tokens == len(tokens)
    assert cached.input_ids[: cached.n_tokens].tolist() == tokens
    assert cached.sample(temp=0.0, idx=len(tokens) - 1) == expected_tokens[0]

    reset_calls = 0
    original_reset = cached.reset

    def reset_tracker() -> None:
        nonlocal reset_calls
        reset_calls += 1
        original_reset()

    cached.reset = reset_tracker
    cached_tokens = generate(cached, tokens)
    assert reset_calls == 0
    assert cached_tokens == expected_tokens
    assert cached.n_tokens == len(tokens) + len(cached_tokens) - 1


def test_loaded_exact_cached_prompt_reuse_matches_fresh(case: Any) -> None:
    fresh = create(case)
    tokens = fresh.tokenize(b"The quick brown fox", add_bos=True, special=True)
    expected_tokens = generate(fresh, tokens)
    source = create(case)
    source.eval(tokens)
    state = source.save_state()

    loaded = create(case)
    loaded.eval([*tokens[:-1], 1 if tokens[-1] != 1 else 2])
    loaded.load_state(state)
    assert loaded.n_tokens == len(tokens)
    assert loaded.input_ids[: loaded.n_tokens].tolist() == tokens
    loaded_tokens = generate(loaded, tokens)
    assert loaded_tokens == expected_tokens
    assert loaded.n_tokens == len(tokens) + len(loaded_tokens) - 1


def test_ram_cache_exact_prompt_hit_matches_fresh(case: Any) -> None:
    options = {"max_tokens": 1, "temperature": 0.0, "seed": 1337}
    fresh = create(case)
    tokens = fresh.tokenize(b"The quick brown fox", add_bos=True, special=True)
    expected = fresh.create_completion(tokens, **options)
    cache = llama_cpp.LlamaRAMCache()
    writer = create(case)
    writer.set_cache(cache)
    writer.create_completion(tokens, **options)

    cached = create(case)
    cached.set_cache(cache)
    load_state_calls = 0
    original_load_state = cached.load_state

    def load_state_tracker(state: Any) -> None:
        nonlocal load_state_calls
        load_state_calls += 1
        original_load_state(state)

    cached.load_state = load_state_tracker
    actual = cached.create_completion(tokens, **options)
    assert load_state_calls == 1
    assert actual["choices"][0]["text"] == expected["choices"][0]["text"]
    assert actual["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


def test_shorter_prompt_prefix_reuse_matches_fresh(case: Any) -> None:
    fresh = create(case)
    tokens = fresh.tokenize(b"The quick brown fox", add_bos=True, special=True)
    history_tokens = fresh.tokenize(b" jumps over the lazy dog", add_bos=False, special=True)
    expected_tokens = generate(fresh, tokens)
    cached = create(case)
    cached.eval(tokens + history_tokens)
    assert cached.n_tokens > len(tokens)
    assert cached.input_ids[: len(tokens)].tolist() == tokens
    assert generate(cached, tokens) == expected_tokens


def test_real_llama_embeddings(golden: Any) -> None:
    path = str(golden / "bert" / "model.gguf")
    model = llama_cpp.Llama(path, n_ctx=32, n_batch=32, n_ubatch=32, embedding=True)
    embedding = model.embed("Hello World")
    assert len(embedding) > 0
    prompts = ["Hello World", "A different prompt"]
    individual_embeddings = [model.embed(prompt) for prompt in prompts]
    batched_embeddings = model.embed(prompts)
    assert len(batched_embeddings) == len(prompts)
    for individual, batched in zip(individual_embeddings, batched_embeddings):
        np.testing.assert_allclose(batched, individual, rtol=1e-4, atol=1e-4)
    repeated_embeddings = model.embed(list(reversed(prompts)))
    assert len(repeated_embeddings) == len(prompts)
    assert all(len(repeated) == len(embedding) for repeated in repeated_embeddings)


def test_grammar_from_string() -> None:
    tree = """
leaf ::= "."
node ::= leaf | "(" node node ")"
root ::= node
"""
    assert llama_cpp.LlamaGrammar.from_string(tree)._grammar == tree


def test_composed_pydantic_grammar(smol: Any) -> None:
    schema = {
        "$defs": {
            "A": {
                "properties": {"a": {"title": "A", "type": "integer"}},
                "required": ["a"],
                "title": "A",
                "type": "object",
            }
        },
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"title": "B", "type": "integer"}},
        "required": ["a", "b"],
        "title": "B",
        "type": "object",
    }
    grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema))
    smol._model.native.check_grammar(grammar._kind, grammar._grammar)


def test_grammar_anyof(smol: Any) -> None:
    schema = {
        "properties": {
            "temperature": {"description": "The temperature mentioned", "type": "number"},
            "unit": {
                "anyOf": [
                    {
                        "description": "Unit for temperature",
                        "enum": ["celsius", "fahrenheit"],
                        "type": "string",
                    },
                    {"type": "null"},
                ],
            },
        },
        "type": "object",
    }
    grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema))
    smol._model.native.check_grammar(grammar._kind, grammar._grammar)


def test_mistral_instruct() -> None:
    jinja2 = pytest.importorskip("jinja2")
    reference = jinja2.Template(llama_chat_format.MIXTRAL_INSTRUCT_CHAT_TEMPLATE)
    messages: Any = [
        llama_types.ChatCompletionRequestUserMessage(role="user", content="Instruction"),
        llama_types.ChatCompletionRequestAssistantMessage(role="assistant", content="Model answer"),
        llama_types.ChatCompletionRequestUserMessage(role="user", content="Follow-up instruction"),
    ]
    response = llama_chat_format.format_mistral_instruct(messages=messages)  # type: ignore[attr-defined]
    prompt = ("" if response.added_special else "<s>") + response.prompt
    assert prompt == reference.render(messages=messages, bos_token="<s>", eos_token="</s>")


def test_hf_tokenizer_config_str_to_chat_formatter() -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": llama_chat_format.MIXTRAL_INSTRUCT_CHAT_TEMPLATE,
    }
    formatter = hf_tokenizer_config_to_chat_formatter(config)
    response = formatter(messages=[llama_types.ChatCompletionRequestUserMessage(role="user", content="Hello, world!")])
    assert response.prompt == "<s>[INST] Hello, world! [/INST]</s>"


def test_find_candidate_pred_tokens() -> None:
    find = LlamaPromptLookupDecoding.find_candidate_pred_tokens
    found = find(np.array([1, 2, 3, 1, 2, 3, 1, 2, 3]), max_ngram_size=3, num_pred_tokens=2)
    assert np.array_equal(found, np.array([1, 2]))
    found = find(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9]), max_ngram_size=3, num_pred_tokens=2)
    assert np.array_equal(found, np.array([]))
