"""`Engine`, `Server` and the command."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from typing import Any

import numpy as np
import oxidize
import pytest
from oxidize import Engine, Llama, Server


def test_a_list_of_prompts_is_a_list_of_answers(engine: Engine, capfd: Any) -> None:
    prompts = [f"The number {index} is" for index in range(5)]
    answers = engine.generate(prompts, max_tokens=4, temperature=0)
    assert len(answers) == 5 and all(len(answer.tokens) == 4 for answer in answers)
    assert answers[2].text == engine.generate(prompts[2], max_tokens=4, temperature=0).text
    assert engine.generate([], max_tokens=1) == []
    assert capfd.readouterr() == ("", "")
    engine.generate(prompts, max_tokens=1, progress=True)
    written = capfd.readouterr()
    assert "5/5" in written.err and written.out == ""


def test_prompts_are_texts_tokens_and_messages(engine: Engine) -> None:
    text = "The capital of France is"
    by_text = engine.generate(text, max_tokens=3, temperature=0)
    by_tokens = engine.generate(engine.tokenize(text), max_tokens=3, temperature=0)
    assert by_text.text == by_tokens.text and str(by_text) == by_text.text
    chat = engine.generate([{"role": "user", "content": "Hi"}], max_tokens=3)
    assert chat.prompt_tokens > len(engine.tokenize("Hi"))


def test_schemas(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    answer = engine.generate("A person in JSON: ", schema=schema, max_tokens=60, temperature=0)
    assert isinstance(answer.parsed["age"], int)
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", age=(int, pydantic.Field(ge=0, le=99)), __config__={"extra": "forbid"})
    assert isinstance(engine.generate("A person in JSON: ", schema=person, max_tokens=60).parsed, person)
    assert engine.generate("Well? ", regex="(yes|no)").text in ("yes", "no")
    with pytest.raises(ValueError, match="exclude each other"):
        engine.generate("x", regex="a", grammar='root ::= "a"')
    with pytest.raises(TypeError, match="temperatur"):
        engine.generate("x", temperatur=1)


def test_streams_with_for(engine: Engine) -> None:
    stream = engine.stream("The capital of France is", max_tokens=4, temperature=0, logprobs=1)
    with pytest.raises(RuntimeError, match="not complete"):
        stream.answer()
    tokens = list(stream)
    assert "".join(map(str, tokens)) == stream.answer().text
    assert all(token.logprob is not None and len(token.top) == 1 for token in tokens)


def test_streams_with_async_for(engine: Engine) -> None:
    async def story(index: int) -> str:
        stream = engine.stream(f"Story {index}:", max_tokens=6, temperature=0)
        return "".join([token.text async for token in stream])

    async def run() -> list[str]:
        stories = await asyncio.gather(*[story(index) for index in range(32)])
        stream = engine.stream("Hello", max_tokens=100, temperature=0)
        async for _ in stream:
            break
        assert (await engine.agenerate("Hello", max_tokens=2)).finish_reason == "length"
        return stories

    stories = asyncio.run(run())
    # Each as it would be alone.
    assert stories[:8] == [
        engine.generate(f"Story {index}:", max_tokens=6, temperature=0).text for index in range(8)
    ]
    # A second loop works as well.
    assert asyncio.run(run()) == stories


def test_closing_wakes_a_task_that_waits(tiny_path: str) -> None:
    async def run() -> None:
        engine = Engine(tiny_path, n_ctx=128)
        stream = engine.stream("Hello", max_tokens=100)
        iterator = stream.__aiter__()
        await iterator.__anext__()
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            while True:
                await iterator.__anext__()

    asyncio.run(run())


def test_logits_are_those_of_llama_and_of_the_hidden_states(engine: Engine, smol_path: str) -> None:
    tokens = engine.tokenize("Hello, world")
    logits = engine.logits("Hello, world")
    assert logits.shape == (len(tokens), engine.n_vocab) and logits.dtype == np.float32
    with Llama(smol_path, n_ctx=64, logits_all=True) as llm:
        llm.eval(tokens)
        assert np.allclose(llm.scores[: len(tokens)], logits, atol=0.05)
    assert engine.hidden_states("Hello, world").shape == (len(tokens), 576)
    # DLPack shares the memory.
    shared = np.from_dlpack(logits)
    logits[0, 0] = 12345.0
    assert shared[0, 0] == 12345.0


def test_embeddings(engine: Engine) -> None:
    matrix = engine.embed(["a cat", "a dog"])
    assert matrix.shape == (2, 576) and np.allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-4)
    assert np.dot(engine.embed("a cat"), matrix[0]) > 0.999
    assert engine.embed("a cat", pooling="last").shape == (576,)
    with pytest.raises(ValueError, match="pooling"):
        engine.embed("x", pooling="sum")


def test_measurements_and_files(engine: Engine, tiny_path: str, tmp_path: Any) -> None:
    speeds = engine.bench(prompt_tokens=32, answer_tokens=4, parallel=2)
    assert all(value > 0 for value in speeds.values())
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    report = engine.perplexity(text, chunks=1, n_ctx=128)
    assert report["perplexity"] > 1 and report["chunks"] == 1
    target = tmp_path / "small.gguf"
    Engine.quantize(tiny_path, target, "Q8_0")
    with Engine(target, n_ctx=64) as small:
        assert small.generate("Hi", max_tokens=2).finish_reason in ("length", "stop")
    with pytest.raises(RuntimeError, match="nowhere"):
        Engine.quantize("/nowhere.gguf", target, "Q8_0")


def test_representations(engine: Engine, tiny_path: str) -> None:
    assert "llama" in repr(engine) and "<table>" in engine._repr_html_()
    with Llama(tiny_path, n_ctx=64, verbose=False) as llm:
        assert "<td>64 tokens</td>" in llm._repr_html_()
    assert "closed" in llm._repr_html_()
    closed = Engine(tiny_path, n_ctx=64)
    closed.close()
    assert "closed" in repr(closed) and "closed" in closed._repr_html_()
    with pytest.raises(RuntimeError, match="closed"):
        closed.generate("x")


def test_the_server_answers_and_stops(tiny_path: str) -> None:
    with Server({"tiny": tiny_path}, port=0, n_ctx=128) as server:
        body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 3}).encode()
        request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
        for _ in range(200):
            try:
                answer = json.load(urllib.request.urlopen(request, timeout=60))
                break
            except urllib.error.HTTPError as error:
                # Still loading.
                assert error.code == 503
        assert answer["usage"]["completion_tokens"] == 3
        assert not server.wait(timeout=0.01)
        assert server._repr_html_() == f'<a href="{server.url}">{server.url}</a>'
        with pytest.raises(OSError):
            Server(tiny_path, port=int(server.url.rsplit(":", 1)[1]))
    with pytest.raises(OSError):
        urllib.request.urlopen(request, timeout=5)
    with pytest.raises(ValueError, match="IP address"):
        Server(tiny_path, host="no host", port=0)
    with pytest.raises(ValueError, match="does not exist"):
        Server("/nowhere.gguf")


def test_the_command(tiny_path: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oxidize", *arguments], capture_output=True, text=True, check=False
        )

    assert run("--version").stdout.strip() == f"oxidize {oxidize.__version__}"
    assert "llama" in run("inspect", tiny_path).stdout
    wrong = run("inspect", "/nowhere.gguf")
    assert wrong.returncode == 1 and "/nowhere.gguf" in wrong.stderr
    assert run("nonsense").returncode == 2
