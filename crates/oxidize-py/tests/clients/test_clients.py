"""Real flows of LangChain, LlamaIndex, instructor, outlines and guidance, most of them against SmolLM2."""

from __future__ import annotations

import json
from typing import Any

import oxidize
import pytest
from oxidize import Llama


def test_langchain(smol_path: str) -> None:
    llms = pytest.importorskip("langchain_community.llms")
    # Its own rope_freq_base would spoil the answers.
    options: Any = {"model_path": smol_path, "rope_freq_base": 100000.0, "n_ctx": 512, "verbose": False}
    model = llms.LlamaCpp(**options, temperature=0.0, max_tokens=8)
    assert isinstance(model.client, oxidize.Llama)
    assert "Paris" in model.invoke("The capital of France is")
    assert "".join(model.stream("The capital of France is")) == model.invoke("The capital of France is")
    assert model.get_num_tokens("The capital of France is") == 5

    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_core.messages import HumanMessage

    chat = ChatLlamaCpp(**options, temperature=0.0, max_tokens=16)
    assert chat.invoke([HumanMessage("Say hi.")]).content
    assert "".join(str(chunk.content) for chunk in chat.stream([HumanMessage("Say hi.")]))


def test_langchain_embeddings(golden: Any) -> None:
    module = pytest.importorskip("langchain_community.embeddings")
    embeddings = module.LlamaCppEmbeddings(model_path=str(golden / "bert" / "model.gguf"), n_ctx=32, verbose=False)
    vectors = embeddings.embed_documents(["a cat", "a dog"])
    assert len(vectors) == 2 and len(embeddings.embed_query("a cat")) == len(vectors[0])


def test_llama_index(smol_path: str) -> None:
    module = pytest.importorskip("llama_index.llms.llama_cpp")
    model = module.LlamaCPP(
        model_path=smol_path,
        temperature=0.0,
        max_new_tokens=8,
        context_window=512,
        messages_to_prompt=lambda messages: "\n".join(str(message.content) for message in messages),
        completion_to_prompt=lambda text: text,
        verbose=False,
    )
    assert "Paris" in model.complete("The capital of France is").text
    assert "".join(chunk.delta for chunk in model.stream_complete("The capital of France is"))
    assert model.metadata.context_window == 512


def test_instructor(llm: Llama) -> None:
    instructor = pytest.importorskip("instructor")
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        name: str
        age: int

    create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA)
    person = create(
        messages=[{"role": "user", "content": "Extract: Jason is 25 years old."}],
        response_model=Person,
        max_tokens=100,
        temperature=0.0,
    )
    assert isinstance(person, Person) and person.age == 25


def test_outlines(llm: Llama) -> None:
    outlines = pytest.importorskip("outlines")
    from typing import Literal

    model = outlines.from_llamacpp(llm)
    assert model("Is the sky blue?", Literal["yes", "no"], max_tokens=10) in ("yes", "no")
    assert isinstance(model("Say hi.", max_tokens=5), str)
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    answer = model("A person:", outlines.json_schema(json.dumps(schema)), max_tokens=60)
    assert isinstance(json.loads(answer)["age"], int)


def test_guidance(smol_path: str) -> None:
    guidance = pytest.importorskip("guidance")
    model = guidance.models.LlamaCpp(smol_path, n_ctx=512, echo=False)
    answer = model + "The capital of France is" + guidance.gen("city", max_tokens=5, temperature=0.0)
    assert "Paris" in answer["city"]
    choice = model + "Is the sky blue? " + guidance.select(["yes", "no"], name="choice")
    assert choice["choice"] in ("yes", "no")
