"""Real flows of more packages, among them some of a gigabyte (`make test-python-clients`)."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import oxidize
import pytest
from oxidize import Llama


def test_lm_format_enforcer(llm: Llama) -> None:
    enforcer = pytest.importorskip("lmformatenforcer")
    from lmformatenforcer.integrations.llamacpp import (
        build_llamacpp_logits_processor,
        build_token_enforcer_tokenizer_data,
    )

    data = build_token_enforcer_tokenizer_data(llm)
    processor = build_llamacpp_logits_processor(data, enforcer.RegexParser(r" in (19|20)[0-9]{2}"))
    answer: Any = llm(
        "It happened", max_tokens=12, logits_processor=llama_cpp.LogitsProcessorList([processor]), temperature=0
    )
    assert re.fullmatch(r" in (19|20)[0-9]{2}", answer["choices"][0]["text"])


def test_haystack(smol_path: str) -> None:
    generators = pytest.importorskip("haystack_integrations.components.generators.llama_cpp")
    from haystack.dataclasses import ChatMessage

    generator = generators.LlamaCppChatGenerator(
        model=smol_path, n_ctx=256, n_batch=128, model_kwargs={"verbose": False}
    )
    generator.warm_up()
    reply = generator.run([ChatMessage.from_user("Say hi.")], generation_kwargs={"max_tokens": 8, "temperature": 0})
    assert reply["replies"][0].text.startswith("H")


def test_logits_reach_torch_without_a_copy(smol_path: str) -> None:
    torch = pytest.importorskip("torch")
    with oxidize.Engine(smol_path, n_ctx=128) as engine:
        logits = engine.logits("Hello")
        tensor = torch.from_dlpack(logits)
        logits[0, 0] = 7.0
        assert float(tensor[0, 0]) == 7.0 and isinstance(logits, np.ndarray)


def test_txtai(smol_path: str, golden: Path) -> None:
    txtai = pytest.importorskip("txtai")
    # It asks for the whole context, and for a smaller one if that is a ValueError.
    llm = txtai.LLM(smol_path, method="llama.cpp")
    assert isinstance(llm.generator.llm, oxidize.Llama)
    assert "Paris" in llm("The capital of France is", maxlength=8, defaultrole="prompt", temperature=0.0)
    assert "".join(llm([{"role": "user", "content": "Say hi."}], maxlength=8, stream=True, temperature=0.0))

    embeddings = txtai.Embeddings(
        path=str(golden / "bert" / "model.gguf"), method="llama.cpp", maxlength=32, vectors={"pooling_type": 1}
    )
    texts = ["a cat", "a dog", "a house"]
    embeddings.index(texts)
    # A text is as near to itself as can be.
    assert all(embeddings.search(text, 1)[0][1] > 0.999 for text in texts)


def test_dspy_by_the_server(smol_path: str) -> None:
    dspy = pytest.importorskip("dspy")
    with oxidize.Server({"smol": smol_path}, port=0, n_ctx=1024) as server:
        model = dspy.LM(
            "openai/smol", api_base=f"{server.url}/v1", api_key="none", temperature=0.0, max_tokens=64, cache=False
        )
        (answer,) = model("What is the capital of France?")
        assert answer.strip()
        usage = model.history[-1]["usage"]
        assert usage["completion_tokens"] > 0


def test_dspy_on_one_llama(llm: Llama) -> None:
    dspy = pytest.importorskip("dspy")

    class Local(dspy.BaseLM):  # type: ignore[misc]
        """A model of DSPy in this process."""

        def forward(self, prompt: str | None = None, messages: Any = None, **kwargs: Any) -> Any:
            return llm.create_chat_completion_openai_v1(
                messages or [{"role": "user", "content": prompt}], max_tokens=16, temperature=0.0
            )

    # DSPy evaluates on several threads, which share the model.
    model = Local(model="smol", cache=False)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: model(f"What is {n} plus {n}?")[0], range(8)))
    assert len(answers) == 8 and all(isinstance(answer, str) and answer for answer in answers)
