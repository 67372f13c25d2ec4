"""The anthropic package against a running server: anthropic_client.py URL"""

import sys

try:
    import anthropic
except ImportError as missing:
    print(missing)
    sys.exit(77)

url = sys.argv[1]
client = anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)
ASKED = [{"role": "user", "content": "Hello"}]
common = dict(model="tiny", max_tokens=10, extra_body={"temperature": 0}, system="Be kind.", messages=ASKED)

whole = client.messages.create(**common)
assert whole.role == "assistant" and whole.stop_reason in ("max_tokens", "end_turn")
with client.messages.stream(**common) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text == final.content[0].text
assert final.usage.output_tokens == whole.usage.output_tokens
counted = client.messages.count_tokens(model="tiny", system="Be kind.", messages=ASKED)
assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens

tool = {"name": "time", "description": "The time.", "input_schema": {
    "type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"], "additionalProperties": False}}
called = client.messages.create(**{**common, "max_tokens": 400}, tools=[tool],
                                tool_choice={"type": "tool", "name": "time", "disable_parallel_tool_use": True})
block = called.content[0]
assert called.stop_reason == "tool_use" and block.input == {"zone": "UTC"}
with client.messages.stream(**{**common, "max_tokens": 400}, tools=[tool],
                            tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
    assert stream.get_final_message().content[0].input == {"zone": "UTC"}
# A call that is cut off is no call.
long = {**tool, "input_schema": {**tool["input_schema"], "properties": {"zone": {"enum": ["a" * 300]}}}}
cut = client.messages.create(**{**common, "max_tokens": 24}, tools=[long],
                             tool_choice={"type": "any", "disable_parallel_tool_use": True})
assert cut.stop_reason == "max_tokens" and all(part.type != "tool_use" for part in cut.content), cut
answered = ASKED + [{"role": "assistant", "content": [block.model_dump()]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "noon"}]}]
client.messages.create(**{**common, "messages": answered}, tools=[tool])

for kind, act in [
    (anthropic.NotFoundError, lambda: client.messages.create(**{**common, "model": "none"})),
    (anthropic.BadRequestError, lambda: client.messages.create(**{**common, "messages": []})),
    (anthropic.AuthenticationError, lambda: anthropic.Anthropic(base_url=url, api_key="wrong").messages.create(**common)),
]:
    try:
        act()
    except kind as error:
        assert error.body["type"] == "error", error.body
    else:
        raise AssertionError(f"no {kind}")
