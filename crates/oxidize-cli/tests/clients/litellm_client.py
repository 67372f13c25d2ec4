"""litellm against a running server, through OpenAI's and Anthropic's APIs: litellm_client.py URL"""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download
try:
    import litellm
except ImportError as missing:
    print(missing)
    sys.exit(77)

url = sys.argv[1]
litellm.telemetry = False
ASKED = [{"role": "user", "content": "Hello"}]

for common in (
    dict(model="openai/tiny", api_base=f"{url}/v1", api_key="secret"),
    dict(model="anthropic/tiny", api_base=url, api_key="secret"),
):
    whole = litellm.completion(**common, messages=ASKED, max_tokens=8, temperature=0)
    pieces = litellm.completion(**common, messages=ASKED, max_tokens=8, temperature=0, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content, common
    assert whole.usage.completion_tokens == 8 or whole.choices[0].finish_reason == "stop"
vectors = litellm.embedding(model="openai/tiny", api_base=f"{url}/v1", api_key="secret", input=["a"])
assert len(vectors.data) == 1
try:
    litellm.completion(model="openai/none", api_base=f"{url}/v1", api_key="secret", messages=ASKED, max_retries=0)
except litellm.NotFoundError:
    pass
else:
    raise AssertionError("no error")
