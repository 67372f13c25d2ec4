#!/usr/bin/env python3
"""Compare `oxidize serve` with llama-server on the same file, slots, threads and requests.

    bench_serve.py --oxidize target/release/oxidize --llama-server PATH [--model FILE]

For each number of concurrent streams, measures the total tokens per second, the time to the first token (p50, p99) and
memory. The servers take turns, and the best round of each counts. Also measures the time to the first token of a long
prompt with and without a cached prefix. Without --model, `oxidize synth` makes a file of the 1B shape.
Each --variant adds an oxidize, such as an older build or one with other flags.
"""

import argparse
import asyncio
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from http_load import Server, ask
from machine import identify

CHAT = "/v1/chat/completions"


@dataclass
class Result:
    """Result of one round with some number of streams."""

    rate: float
    p50: float
    p99: float
    memory: int


def prompt(rng: random.Random, words: int) -> str:
    vocabulary = ["river", "stone", "light", "north", "seven", "paper", "green", "under", "winter", "music"]
    return " ".join(rng.choice(vocabulary) for _ in range(words))


async def streams(server: Server, n: int, words: int, tokens: int, seed: int) -> Result:
    rng = random.Random(seed)
    bodies = [{"messages": [{"role": "user", "content": prompt(rng, words)}], "max_tokens": tokens, "stream": True,
               "ignore_eos": True, "temperature": 0.8, "seed": i, "cache_prompt": True} for i in range(n)]
    start = time.perf_counter()
    answers = await asyncio.gather(*(ask("127.0.0.1", server.port, CHAT, body) for body in bodies))
    elapsed = time.perf_counter() - start
    bad = [answer.status for answer in answers if answer.status != 200]
    if bad:
        raise RuntimeError(f"{len(bad)} of {n} failed, the first with {bad[0]}")
    firsts = sorted(answer.first_token or answer.seconds for answer in answers)
    # All requested tokens were generated, even if some have no text.
    return Result(n * tokens / elapsed, firsts[len(firsts) // 2], firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], server.memory())


async def prefix(server: Server, words: int) -> tuple[float, float]:
    """Time to the first token of a long prompt, without and with a cached prefix."""
    rng = random.Random(99)
    shared = prompt(rng, words)
    times = []
    for tail in ("First question?", "Second question?"):
        body = {"messages": [{"role": "user", "content": f"{shared}\n{tail}"}], "max_tokens": 4, "stream": True, "cache_prompt": True}
        answer = await ask("127.0.0.1", server.port, CHAT, body)
        if answer.status != 200:
            raise RuntimeError(answer.body.decode())
        times.append(answer.first_token or answer.seconds)
    return times[0], times[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oxidize", type=Path, default=Path("target/release/oxidize"))
    parser.add_argument("--llama-server", default=os.environ.get("LLAMA_SERVER") or shutil.which("llama-server"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--streams", default="1,4,16,64")
    parser.add_argument("--words", type=int, default=20, help="words of each prompt")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prefix", type=int, default=600, help="words of the long prompt, about three tokens each; 0 skips it")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=BINARY FLAGS", help="another oxidize, or the same with other flags")
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--directory", type=Path, default=Path("target/bench-serve"))
    options = parser.parse_args()
    # On SIGTERM, the servers are stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.directory.mkdir(parents=True, exist_ok=True)
    model = options.model
    if model is None:
        model = options.directory / f"1b-{options.type}.gguf"
        if not model.exists():
            subprocess.run([options.oxidize, "synth", "-o", model, "--shape", "1b", "--type", options.type], check=True)
    sizes = [int(n) for n in options.streams.split(",")]
    slots, context = max(sizes), 4096
    port, threads = str(options.port), str(options.threads)
    # Enough for all streams at 256 tokens each, and for the long prompt.
    cache = str(max(slots * 256, context))
    serve = ["serve", str(model), "--port", port, "-t", threads, "-c", str(context), "--parallel", str(slots), "--cache-tokens", cache,
             "--queue", "256", "--log", "warn"]
    engines = {"oxidize": [str(options.oxidize), *serve]}
    for variant in options.variant:
        name, _, command = variant.partition("=")
        binary, *flags = shlex.split(command)
        engines[name] = [binary, *serve, *flags]
    if options.llama_server:
        # Its context is shared by all slots, and one slot may use all of it.
        engines["llama-server"] = [options.llama_server, "-m", str(model), "--host", "127.0.0.1", "--port", port, "-t", threads, "-tb", threads,
                                   "-c", cache, "-np", str(slots), "--kv-unified", "--no-webui"]
    elif not options.variant:
        print("llama-server not found; set --llama-server or LLAMA_SERVER", file=sys.stderr)

    best: dict[tuple[str, int], Result] = {}
    prefixes: dict[str, tuple[float, float]] = {}
    idle: dict[str, int] = {}
    for round_ in range(options.rounds):
        for name, command in engines.items():
            server = Server(command, options.port, options.directory / f"{name}.log")
            try:
                server.wait_ready()
                asyncio.run(streams(server, 1, options.words, 4, 1000))
                idle[name] = server.memory()
                for n in sizes:
                    result = asyncio.run(streams(server, n, options.words, options.tokens, round_ * 1000 + n))
                    print(f"{name:>13} {n:>3} streams: {result.rate:7.1f} tokens/s, first token {result.p50:.2f} s (p50) {result.p99:.2f} s (p99)", flush=True)
                    key = (name, n)
                    if key not in best or result.rate > best[key].rate:
                        best[key] = result
                if options.prefix:
                    cold, warm = asyncio.run(prefix(server, options.prefix))
                    if name not in prefixes or warm < prefixes[name][1]:
                        prefixes[name] = (cold, warm)
            finally:
                server.stop(signal.SIGTERM)

    print(f"\n{model.name}, prompts of {options.words} words, answers of {options.tokens} tokens, {options.threads} threads, best of {options.rounds}\n")
    print("| streams | " + " | ".join(f"{name} tok/s" for name in engines) + " | first ÷ last | " + " | ".join(f"{name} first token p50/p99" for name in engines) + " |")
    print("|--:|" + "--:|" * (2 * len(engines) + 1))
    for n in sizes:
        row = [best[name, n] for name in engines]
        ratio = f"{row[0].rate / row[-1].rate:.2f}×" if len(row) > 1 else "–"
        print(f"| {n} | " + " | ".join(f"{r.rate:.1f}" for r in row) + f" | {ratio} | " + " | ".join(f"{r.p50:.2f} / {r.p99:.2f} s" for r in row) + " |")
    print()
    for name in engines:
        grown = best[name, sizes[-1]].memory
        print(f"{name}: memory {idle[name] / 1e6:.0f} MB at start, {grown / 1e6:.0f} MB after {sizes[-1]} streams")
        if name in prefixes:
            cold, warm = prefixes[name]
            print(f"  a prompt of {options.prefix} words {cold:.2f} s to the first token, cached {warm:.3f} s ({warm / cold:.3f}×)")
    results = {f"{name}/{n}": vars(result) for (name, n), result in best.items()}
    names = ("threads", "words", "tokens", "rounds", "prefix")
    settings = {"model": model.name} | {name: getattr(options, name) for name in names}
    data = {"machine": identify(), "settings": settings, "streams": results, "prefix": prefixes, "idle": idle}
    (options.directory / "results.json").write_text(json.dumps(data, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
