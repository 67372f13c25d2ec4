"""The openai package against a running server: openai_client.py URL"""

import json
import sys

try:
    import openai
except ImportError as missing:
    print(missing)
    sys.exit(77)

url = sys.argv[1]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)
MODEL = client.models.list().data[0].id
ASKED = [{"role": "user", "content": "Hello"}]
TIME = {"type": "function", "function": {"name": "time", "description": "The time.", "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"], "additionalProperties": False}}}

# A whole answer and a streamed one.
common = dict(model=MODEL, messages=ASKED, temperature=0, max_completion_tokens=12, extra_body={"ignore_eos": True})
whole = client.chat.completions.create(**common)
assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
pieces = list(client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True}))
text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
assert text == whole.choices[0].message.content
assert pieces[-1].usage.completion_tokens == 12
again = client.chat.completions.create(**common)
assert again.usage.prompt_tokens_details.cached_tokens >= 0

# The package's helper that accumulates a stream.
with client.chat.completions.stream(model=MODEL, messages=ASKED, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}) as stream:
    for event in stream:
        pass
    try:
        stream.get_final_completion()
    except openai.LengthFinishReasonError as cut:
        assert cut.completion.usage is None or cut.completion.usage.completion_tokens == 8
    else:
        raise AssertionError("the answer was cut off")

# Several answers with log probabilities.
several = client.chat.completions.create(model=MODEL, messages=ASKED, n=2, seed=1, max_tokens=4, logprobs=True, top_logprobs=2)
assert len(several.choices) == 2
assert all(len(token.top_logprobs) == 2 for token in several.choices[0].logprobs.content)

# JSON by schema.
schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"], "additionalProperties": False}
shaped = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=60, response_format={
    "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
assert json.loads(shaped.choices[0].message.content)["answer"] in ("yes", "no")

# A required tool call, whose result is sent back.
called = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[TIME], tool_choice="required",
                                        parallel_tool_calls=False, max_tokens=400)
call = called.choices[0].message.tool_calls[0]
assert called.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"zone": "UTC"}
history = ASKED + [called.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
client.chat.completions.create(model=MODEL, messages=history, tools=[TIME], max_tokens=4)
streamed = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[TIME], stream=True, max_tokens=400, parallel_tool_calls=False,
                                          tool_choice={"type": "function", "function": {"name": "time"}})
arguments = "".join(c.function.arguments or "" for p in streamed for c in (p.choices[0].delta.tool_calls or []))
assert json.loads(arguments) == {"zone": "UTC"}

# The older form of tools.
called = client.chat.completions.create(model=MODEL, messages=ASKED, functions=[TIME["function"]], function_call={"name": "time"},
                                        max_tokens=400).choices[0]
assert called.finish_reason == "function_call" and json.loads(called.message.function_call.arguments) == {"zone": "UTC"}

# tool_choice auto: a grammar makes a model of random weights call twice. Arguments are streamed in several parts.
CALLS = r"""root ::= "Well. " call "\n" call
call ::= "<tool_call>\n{\"name\": \"time\", \"arguments\": {\"zone\": \"" [A-Z]{12} "\"}}\n</tool_call>" """
auto = dict(model=MODEL, messages=ASKED, tools=[TIME], tool_choice="auto", max_tokens=400, seed=1, extra_body={"grammar": CALLS})
whole = client.chat.completions.create(**auto).choices[0]
assert whole.finish_reason == "tool_calls" and whole.message.content == "Well.", whole
calls: dict[int, list] = {}
content, reasons = "", []
for piece in client.chat.completions.create(**auto, stream=True):
    content += piece.choices[0].delta.content or ""
    reasons += [piece.choices[0].finish_reason] if piece.choices[0].finish_reason else []
    for part in piece.choices[0].delta.tool_calls or []:
        calls.setdefault(part.index, []).append(part)
assert content == "Well." and reasons == ["tool_calls"], (content, reasons)
assert [parts[0].function.name for parts in calls.values()] == ["time", "time"] and len({parts[0].id for parts in calls.values()}) == 2
for call, parts in zip(whole.message.tool_calls, calls.values(), strict=True):
    pieces = [part.function.arguments for part in parts if part.function.arguments]
    assert len(pieces) > 3, pieces
    assert json.loads("".join(pieces)) == json.loads(call.function.arguments)
    assert len(json.loads(call.function.arguments)["zone"]) == 12

# Completions, embeddings.
completion = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3, logprobs=1)
assert len(completion.choices) == 2 and len(completion.choices[0].logprobs.tokens) == 3
scored = client.completions.create(model=MODEL, prompt="Once upon", echo=True, logprobs=1, max_tokens=0)
scores = scored.choices[0].logprobs.token_logprobs
assert len(scores) == scored.usage.prompt_tokens and scores[0] is None and all(score < 0 for score in scores[1:])
best = client.completions.create(model=MODEL, prompt="a", max_tokens=3, best_of=3, n=2)
assert len(best.choices) == 2
chosen = client.completions.create(model=MODEL, prompt="a", max_tokens=9, extra_body={"guided_choice": ["yes", "no"]})
assert chosen.choices[0].text in ("yes", "no")
unlimited = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=-1, extra_body={"regex": "[a-c]{5}"})
assert len(unlimited.choices[0].message.content) == 5
# The package requests base64 and decodes it.
vectors = client.embeddings.create(model=MODEL, input=["a", "b"]).data
assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0].embedding) - 1) < 1e-3

# Responses, whole and streamed.
response = client.responses.create(model=MODEL, input="Hello", max_output_tokens=6, temperature=0)
events = list(client.responses.create(model=MODEL, input="Hello", max_output_tokens=6, temperature=0, stream=True))
assert events[0].type == "response.created"
assert events[-1].response.output_text == response.output_text
called = client.responses.create(model=MODEL, input="Hello", tool_choice="required", parallel_tool_calls=False,
                                 tools=[{"type": "function", **TIME["function"]}])
assert called.output[0].type == "function_call" and json.loads(called.output[0].arguments) == {"zone": "UTC"}

# Fields that nobody knows are named in a header.
raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASKED, max_tokens=1, extra_body={"temprature": 1})
assert raw.headers["x-oxidize-ignored"] == "temprature"
raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASKED, max_tokens=1, user="me", store=False,
                                                       modalities=["text"], service_tier="auto", metadata={"a": "b"})
assert "x-oxidize-ignored" not in raw.headers

# Errors become exceptions of the package.
for kind, act in [
    (openai.NotFoundError, lambda: client.chat.completions.create(model="none", messages=ASKED)),
    (openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=[])),
    (openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=ASKED, temperature=-1)),
    (openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="Hello", truncation="auto")),
    (openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="Hello", background=True)),
    (openai.AuthenticationError, lambda: openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()),
]:
    try:
        act()
    except kind as error:
        assert error.body["message"], error
    else:
        raise AssertionError(f"no {kind}")
