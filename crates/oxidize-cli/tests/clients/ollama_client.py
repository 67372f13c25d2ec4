"""The ollama package against a running server: ollama_client.py URL"""

import json
import sys

try:
    import ollama
except ImportError as missing:
    print(missing)
    sys.exit(77)

client = ollama.Client(host=sys.argv[1])
MODEL = client.list().models[0].model
ASKED = [{"role": "user", "content": "Hello"}]
OPTIONS = {"num_predict": 8, "temperature": 0}

whole = client.chat(MODEL, ASKED, options=OPTIONS)
text = "".join(piece.message.content for piece in client.chat(MODEL, ASKED, options=OPTIONS, stream=True))
assert whole.message.content == text and whole.done
generated = client.generate(MODEL, "Hello", options=OPTIONS, raw=True)
assert generated.eval_count <= 8
shaped = client.chat(MODEL, ASKED, format={"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
                                           "additionalProperties": False}, options={"num_predict": 60})
assert json.loads(shaped.message.content) == {"a": 1}
tools = [{"type": "function", "function": {"name": "time", "description": "The time.",
                                           "parameters": {"type": "object", "properties": {}}}}]
client.chat(MODEL, ASKED, tools=tools, options=OPTIONS)
assert len(client.embed(MODEL, ["a", "b"]).embeddings) == 2
assert client.show(MODEL).modelinfo["general.architecture"] == "llama"
assert client.ps().models
assert len(client.embeddings(MODEL, "a").embedding) == len(client.embed(MODEL, "a").embeddings[0])
assert client.generate(MODEL, keep_alive=0).done_reason == "unload" and not client.ps().models
assert client.generate(MODEL, keep_alive="5m").done_reason == "load" and client.ps().models
for asked in ({"images": [b"x"]}, {"options": {"num_ctx": 1 << 20}}):
    try:
        client.generate(MODEL, "a", **asked)
    except ollama.ResponseError as error:
        assert error.status_code == 400, error
    else:
        raise AssertionError(f"no error: {asked}")
try:
    client.chat("none", ASKED)
except ollama.ResponseError as error:
    assert error.status_code == 404 and "none" in error.error
else:
    raise AssertionError("no error")
