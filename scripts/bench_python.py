#!/usr/bin/env python3
"""Measure the Python package, and compare it with llama-cpp-python.

    bench_python.py --python PYTHON [--only PART] [--peer PYTHON] [--rounds N] [--model FILE]

PYTHON is the interpreter of an environment with the wheel of oxidize. Parts: `import` (the time that `import oxidize`
takes), `memory` (of processes that open and close models), `batch` (threads and tasks that share a model), `overhead` (of
generation, beside `oxidize bench` of the same wheel), and `peer`, for which --peer is an interpreter with
llama-cpp-python. The two take turns, and the best round of each counts, because disturbances only make a run slower.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from machine import identify

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "fixtures" / "tiny" / "model.gguf"
CACHE = Path(os.environ.get("OXIDIZE_TEST_CACHE") or Path.home() / ".cache" / "oxidize")
SMOL = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

# Programs that measure one thing in a process of its own and print JSON. They take the model, and the number of threads.
IMPORT = """
import json, time
start = time.perf_counter()
import oxidize
from oxidize import Llama
print(json.dumps(time.perf_counter() - start))
"""

MEMORY = """
import json, sys
from oxidize import Llama
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
def cycle(times):
    for _ in range(times):
        with Llama(sys.argv[1], n_ctx=64, verbose=False) as llm:
            llm("Hello", max_tokens=2)
    return resident()
print(json.dumps([cycle(100)] + [cycle(225) for _ in range(4)]))
"""

BATCH = """
import asyncio, json, sys, threading, time
import oxidize
model, threads, deterministic, tokens = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", 64
prompts = [f"Story number {index}:" for index in range(32)]
llm = oxidize.Llama(model, n_ctx=256, n_threads=threads, deterministic=deterministic, verbose=False)
ban = {token: -1000.0 for token in range(llm.n_vocab()) if llm._model.native_tokenizer.is_end(token)}
def ask(prompt):
    answer = llm(prompt, max_tokens=tokens, temperature=0.0, logit_bias=ban)
    return answer["choices"][0]["text"]
ask("Warm up:")
start = time.perf_counter()
alone = [ask(prompt) for prompt in prompts[:8]]
result = {"one": 8 * tokens / (time.perf_counter() - start)}
together = [None] * len(prompts)
def work(index):
    together[index] = ask(prompts[index])
workers = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
start = time.perf_counter()
for worker in workers: worker.start()
for worker in workers: worker.join()
result["threads"] = len(prompts) * tokens / (time.perf_counter() - start)
result["threads equal"] = sum(a == b for a, b in zip(alone, together))
llm.close()
engine = oxidize.Engine(model, n_ctx=256, n_threads=threads, deterministic=deterministic)
async def task(prompt):
    text = []
    stream = engine.stream(prompt, max_tokens=tokens, temperature=0.0, logit_bias=ban, repeat_penalty=1.0)
    async for token in stream:
        text.append(token.text)
    return "".join(text)
async def run(some):
    return await asyncio.gather(*map(task, some))
asyncio.run(run(["Warm up:"]))
single = [asyncio.run(run([prompt]))[0] for prompt in prompts[:8]]
start = time.perf_counter()
answers = asyncio.run(run(prompts))
result["tasks"] = len(prompts) * tokens / (time.perf_counter() - start)
result["tasks equal"] = sum(a == b for a, b in zip(single, answers))
print(json.dumps(result))
"""

# Generation from one token on, as `bench` measures it, without and with a stream of dictionaries.
DECODE = """
import json, sys, time
import oxidize
llm = oxidize.Llama(sys.argv[1], n_ctx=512, n_threads=int(sys.argv[2]), verbose=False)
ban = {token: -1000.0 for token in range(llm.n_vocab()) if llm._model.native_tokenizer.is_end(token)}
def rate(n, stream):
    start = time.perf_counter()
    answer = llm([llm.token_bos()], max_tokens=n, temperature=0.0, stream=stream, logit_bias=ban)
    if stream:
        for chunk in answer: pass
    return time.perf_counter() - start
rate(16, False)
# The difference of two lengths leaves out the prompt.
print(json.dumps({kind: max(128 / (rate(136, stream) - rate(8, stream)) for _ in range(3))
                  for kind, stream in (("whole", False), ("stream", True))}))
"""

PEER = """
import json, sys, time
package, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
if package == "oxidize":
    from oxidize import Llama
else:
    from llama_cpp import Llama
def best(work, times=3):
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
settings = dict(n_threads=threads, n_threads_batch=threads, verbose=False)
text = ("The river runs past the old mill, where the miller's daughter counts the sacks of flour each evening, and the "
        "swallows return in spring. ") * 40
llm = Llama(model, n_ctx=1024, n_batch=512, **settings)
result = {"tokenizing": len(text.encode()) / best(lambda: llm.tokenize(text.encode()), 20) / 1e6}
tokens = llm.tokenize(text.encode())
def prompt(first):
    # Another first token, so that no cached prefix is reused.
    return [tokens[first]] + tokens[1:512]
counter = iter(range(2, 500))
result["prompt"] = 512 / best(lambda: llm(prompt(next(counter)), max_tokens=1, temperature=0.0))
ban = {llm.token_eos(): -1000.0}
def generate(n):
    start = time.perf_counter()
    answer = llm(tokens[:16], max_tokens=n, temperature=0.0, logit_bias=ban)
    return answer["usage"]["completion_tokens"], time.perf_counter() - start
def generation():
    # The difference of two lengths leaves out the prompt.
    (short, before), (long, after) = generate(8), generate(136)
    return (long - short) / (after - before)
result["generation"] = max(generation() for _ in range(3))
llm.close()
llm = Llama(model, n_ctx=512, n_batch=512, embedding=True, pooling_type=1, **settings)
texts = [f"{index} " + text[: 8 * 40] for index in range(32)]
n_tokens = sum(len(llm.tokenize(one.encode())) for one in texts)
result["embeddings"] = n_tokens / best(lambda: llm.embed(texts))
llm.close()
print(json.dumps(result))
"""

UNITS = {"prompt": "tokens/s", "generation": "tokens/s", "embeddings": "tokens/s", "tokenizing": "MB/s"}


def run(python: str, program: str, *arguments: object) -> object:
    command = [python, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_python: error: {python} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def importing(options: argparse.Namespace) -> None:
    seconds = sorted(run(options.python, IMPORT) for _ in range(9))
    print(f"import: {seconds[0] * 1000:.1f} ms at best, median {seconds[4] * 1000:.1f} ms")


def memory(options: argparse.Namespace) -> None:
    sizes = run(options.python, MEMORY, TINY)
    print("resident memory after 100, 325, 550, 775 and 1000 models: " + ", ".join(f"{kb / 1024:.1f}" for kb in sizes) + " MiB")


def batch(options: argparse.Namespace) -> None:
    print("| mode | one thread | 32 threads | 32 tasks | ratio | equal answers (threads, tasks) |\n|---|---|---|---|---|---|")
    for mode in ("default", "deterministic"):
        rates = run(options.python, BATCH, options.model, options.threads, int(mode == "deterministic"))
        ratio = f"{rates['threads'] / rates['one']:.1f} ×, {rates['tasks'] / rates['one']:.1f} ×"
        print(f"| {mode} | {rates['one']:.0f} tokens/s | {rates['threads']:.0f} | {rates['tasks']:.0f} | {ratio} | "
              f"{rates['threads equal']} of 8, {rates['tasks equal']} of 8 |")


def overhead(options: argparse.Namespace) -> None:
    best = {"bench": 0.0, "whole": 0.0, "stream": 0.0}
    for _ in range(options.rounds):
        command = [options.python, "-m", "oxidize", "bench", "-m", options.model, "-p", "0", "-n", "128", "-r", "3",
                   "-t", str(options.threads), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        best["bench"] = max(best["bench"], *json.loads(done.stdout)[0]["samples"])
        for kind, rate in run(options.python, DECODE, options.model, options.threads).items():
            best[kind] = max(best[kind], rate)
    for kind in ("whole", "stream"):
        loss = 100 * (1 - best[kind] / best["bench"])
        print(f"generation: oxidize bench {best['bench']:.1f} tokens/s, Llama ({kind}) {best[kind]:.1f}: {loss:+.1f} % slower")


def peer(options: argparse.Namespace) -> None:
    if options.peer is None:
        sys.exit("bench_python: error: --only peer needs --peer PYTHON")
    best: dict[str, dict[str, float]] = {"oxidize": {}, "llama_cpp": {}}
    for _ in range(options.rounds):
        for package, python in (("oxidize", options.python), ("llama_cpp", options.peer)):
            for name, value in run(python, PEER, package, options.model, options.threads).items():
                best[package][name] = max(best[package].get(name, 0.0), value)
    print("| | oxidize | llama-cpp-python | ratio |\n|---|---|---|---|")
    for name, unit in UNITS.items():
        ours, theirs = best["oxidize"][name], best["llama_cpp"][name]
        print(f"| {name} ({unit}) | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |")


PARTS = {"import": importing, "memory": memory, "batch": batch, "overhead": overhead, "peer": peer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with oxidize")
    parser.add_argument("--peer", help="interpreter with llama-cpp-python")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this (repeatable)")
    parser.add_argument("--model", type=Path, default=SMOL)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(" · ".join(f"{key}: {value}" for key, value in identify().items()) + f" · threads: {options.threads}")
    for name in options.only or [name for name in PARTS if name != "peer" or options.peer]:
        PARTS[name](options)


if __name__ == "__main__":
    main()
