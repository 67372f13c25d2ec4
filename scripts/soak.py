#!/usr/bin/env python3
"""Soak test of the server.

    soak.py --oxidize target/release/oxidize [--requests 20000] [--clients 64]

Runs a tiny model on 127.0.0.1 and tests streams with clients that disconnect, a thousand connections to eight slots,
clients that do not read, malformed requests, and SIGTERM during requests. Exits with 1 if a check fails.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from http_load import Server, ask

CHAT = "/v1/chat/completions"


class Checks:
    """Prints the result of each check and counts the failures."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, good: bool, text: str) -> None:
        self.failed += not good
        print(f"  {'ok    ' if good else 'FAILED'} {text}", flush=True)


def question(rng: random.Random, tokens: int, stream: bool = True) -> dict:
    words = " ".join(rng.choice(["sun", "moon", "sea", "wind", "stone"]) for _ in range(rng.randint(1, 60)))
    return {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "stream": stream, "ignore_eos": True}


def percentile(values: list[float], p: float) -> float:
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


async def disconnecting_clients(server: Server, check: Checks, requests: int, clients: int) -> None:
    print(f"{requests} streams of {clients} clients; a fifth of them disconnect early")
    rng = random.Random(1)
    left = requests
    statuses: dict[int, int] = {}
    gone = 0
    memory: list[int] = []

    async def client() -> None:
        nonlocal left, gone
        while left > 0:
            left -= 1
            if left % max(1, requests // 100) == 0:
                memory.append(server.memory())
            leave = rng.randint(1, 6) if rng.random() < 0.2 else None
            answer = await ask("127.0.0.1", server.port, CHAT, question(rng, rng.randint(4, 16)), leave)
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            gone += answer.left
            whole = answer.left or answer.body.rstrip().endswith(b"data: [DONE]") or b"[DONE]" in answer.body
            if not whole:
                statuses[-1] = statuses.get(-1, 0) + 1

    start = time.time()
    await asyncio.gather(*(client() for _ in range(clients)))
    elapsed = time.time() - start
    await asyncio.sleep(0.5)
    metrics = server.metrics()
    # The allocator's arenas grow at first; only a leak keeps growing. Means even out temporary buffers.
    fifth = len(memory) // 5
    before, after = statistics.mean(memory[-2 * fifth:-fifth]), statistics.mean(memory[-fifth:])
    curve = " ".join(f"{bytes / 1e6:.1f}" for bytes in memory[9::10])
    print(f"  {requests / elapsed:.0f} requests/s, {gone} disconnected early; memory {curve} MB, {100 * (after / before - 1):+.2f}% in the last fifth")
    check(set(statuses) == {200}, f"every request was answered: {statuses}")
    check(gone > requests // 10, "clients disconnected")
    check(metrics["oxidize_requests_running"] + metrics["oxidize_requests_waiting"] + metrics["oxidize_used_blocks"] == 0, "no block leaked, and no request is running")
    check(after < before * 1.02, "memory grew by less than 2%")


async def many_connections(server: Server, check: Checks, connections: int) -> None:
    print(f"{connections} connections at once")
    rng = random.Random(2)
    done = False
    health: list[float] = []

    async def probe() -> None:
        while not done:
            health.append((await ask("127.0.0.1", server.port, "/health", None)).seconds)
            await asyncio.sleep(0.05)

    probing = asyncio.create_task(probe())
    # In waves, because this client is a single Python thread, whose queueing must not count as the server's.
    answers = []
    for wave in range(0, connections, 50):
        tasks = [asyncio.create_task(ask("127.0.0.1", server.port, CHAT, question(rng, 400))) for _ in range(50)]
        answers.append(tasks)
        await asyncio.sleep(0.2)
    results = [await task for tasks in answers for task in tasks]
    done = True
    await probing
    refused = [answer for answer in results if answer.status == 429]
    times = [answer.seconds for answer in refused]
    check({answer.status for answer in results} <= {200, 429}, f"{len(results) - len(refused)} answered, {len(refused)} rejected with 429")
    check(bool(refused) and all(int(answer.headers.get("retry-after", 0)) >= 1 for answer in refused), "each with Retry-After")
    if times:
        print(f"  429 after {1e3 * statistics.median(times):.1f} ms (p50), {1e3 * percentile(times, 0.99):.1f} ms (p99)")
        check(statistics.median(times) < 0.05, "in under 50 ms")
    print(f"  /health after {1e3 * statistics.median(health):.1f} ms (p50), {1e3 * percentile(health, 0.99):.1f} ms (p99)")
    check(percentile(health, 0.95) < 0.1, "/health in under 100 ms")


async def stalled_clients(server: Server, check: Checks, io_timeout: float) -> None:
    print("clients that do not read")
    body = question(random.Random(3), 1500)
    body |= {"n": 8, "logprobs": True, "top_logprobs": 20}
    before = server.metrics()["oxidize_stalled_clients_total"]
    sockets = []
    for _ in range(4):
        s = socket.create_connection(("127.0.0.1", server.port))
        data = json.dumps(body).encode()
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        sockets.append(s)
    deadline = time.time() + 6 * io_timeout + 60
    while time.time() < deadline and server.metrics()["oxidize_stalled_clients_total"] < before + 4:
        await asyncio.sleep(0.2)
    check(server.metrics()["oxidize_stalled_clients_total"] == before + 4, "all were disconnected")
    for s in sockets:
        s.close()
    await asyncio.sleep(0.5)
    check(server.metrics()["oxidize_used_blocks"] == 0, "and their blocks were freed")


async def malformed_requests(server: Server, check: Checks, count: int) -> None:
    print(f"{count} malformed requests")
    rng = random.Random(4)
    good = b'{"messages":[{"role":"user","content":"hello"}],"max_tokens":2}'
    worst = 0
    for _ in range(count):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        if rng.random() < 0.3:
            head = bytes(rng.randrange(256) if rng.random() < 0.02 else byte for byte in head)
        try:
            writer.write(head + data)
            writer.write_eof()
            reply = await asyncio.wait_for(reader.read(65536), 30)
            status = reply.split(b" ")[1:2]
            worst = max(worst, int(status[0]) if status and status[0].isdigit() else 0)
        except (ConnectionError, OSError):
            pass
        finally:
            writer.close()
    check(worst < 500, f"the highest status was {worst}")


async def stop_during_requests(server: Server, check: Checks) -> None:
    print("SIGTERM during requests")
    rng = random.Random(5)
    tasks = [asyncio.create_task(ask("127.0.0.1", server.port, CHAT, question(rng, 300))) for _ in range(8)]
    while server.metrics()["oxidize_requests_running"] < 8:
        await asyncio.sleep(0.01)
    code = asyncio.get_running_loop().run_in_executor(None, server.stop, signal.SIGTERM)
    answers = await asyncio.gather(*tasks)
    check(all(b"[DONE]" in answer.body for answer in answers), "every answer was complete")
    check(await code == 0, "the server exited with 0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oxidize", type=Path, default=Path("target/release/oxidize"))
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--malformed", type=int, default=2000)
    parser.add_argument("--port", type=int, default=18090)
    parser.add_argument("--directory", type=Path, default=Path("target/soak"))
    options = parser.parse_args()
    # On SIGTERM, the servers are stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.directory.mkdir(parents=True, exist_ok=True)
    model = options.directory / "tiny.gguf"
    subprocess.run([options.oxidize, "synth", "-o", model, "--shape", "tiny", "--type", "Q8_0"], check=True, stdout=subprocess.DEVNULL)
    io_timeout = 2
    check = Checks()

    def start(*args: str) -> Server:
        server = Server([str(options.oxidize), "serve", str(model), "--port", str(options.port), "--log", "warn", *args],
                        options.port, options.directory / "server.log")
        server.wait_ready()
        return server

    # A small cache, so that all of it is in use long before memory is compared.
    server = start("--parallel", "64", "--queue", "256", "--cache-tokens", "16384", "--io-timeout", str(io_timeout))
    try:
        asyncio.run(disconnecting_clients(server, check, options.requests, options.clients))
        asyncio.run(stalled_clients(server, check, io_timeout))
        asyncio.run(malformed_requests(server, check, options.malformed))
        asyncio.run(stop_during_requests(server, check))
        server = start("--parallel", "8", "--queue", "8")
        asyncio.run(many_connections(server, check, options.connections))
    finally:
        server.stop(signal.SIGKILL)
    print("FAILED" if check.failed else "passed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
