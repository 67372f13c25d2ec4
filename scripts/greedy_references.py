#!/usr/bin/env python3
"""Write greedy answers of llama.cpp with the five most likely tokens at each position.

    greedy_references.py [--tokens 48] [--out DIR] MODEL.gguf...

The answers go to DIR/NAME.greedy.json (default: `greedy` in the test cache), where the
`generate_golden` tests look for them. Needs the `xllamacpp` package.
"""

import argparse
import importlib.metadata
import json
import os
import sys
from pathlib import Path

PROMPTS = [
    "Once upon a time",
    "The three laws of thermodynamics are",
    "def fibonacci(n):\n",
    "Die Hauptstadt von Frankreich ist",
    "Q: Why is the sky blue?\nA:",
]


def answers(model: Path, n_tokens: int) -> list[dict]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 512
    params.n_parallel = 1
    params.warmup = False
    # One thread: several would wait for each other if other processes run.
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    runs = []
    for prompt in PROMPTS:
        request = {
            "prompt": prompt,
            "n_predict": n_tokens,
            "temperature": 0.0,
            "top_k": 1,
            "n_probs": 5,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        reply = server.handle_completions(request)
        reply = json.loads(reply) if isinstance(reply, (str, bytes)) else reply
        choices = reply["choices"][0]
        positions = choices["logprobs"]["content"]
        tokens = [
            {
                "id": position["id"],
                "logprob": position["logprob"],
                "top": [[top["id"], top["logprob"]] for top in position["top_logprobs"]],
            }
            for position in positions
        ]
        # The list lacks tokens that end inside a character, so such an answer is not usable.
        if len(tokens) != n_tokens:
            print(f"{model.name}: {prompt!r} has a token that ends inside a character; skipped", file=sys.stderr)
            continue
        runs.append({"prompt": prompt, "text": choices["text"], "tokens": tokens})
    return runs


def main() -> int:
    cache = Path(os.environ.get("OXIDIZE_TEST_CACHE") or Path.home() / ".cache/oxidize")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, default=cache / "greedy")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    engine = f"xllamacpp {importlib.metadata.version('xllamacpp')} (llama.cpp), CPU"
    for model in options.models:
        runs = answers(model, options.tokens)
        report = {"engine": engine, "model": model.name, "runs": runs}
        path = options.out / f"{model.stem}.greedy.json"
        path.write_text(json.dumps(report))
        print(f"{path}: {len(runs)} answers of {len(runs[0]['tokens'])} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
