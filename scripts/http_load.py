"""A small HTTP client for load tests, which can stream and disconnect early. Uses only the standard library."""

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Answer:
    """Response and its timing."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    first_token: float | None = None
    tokens: int = 0
    left: bool = False


async def ask(host: str, port: int, path: str, body: dict | None, leave_after: int | None = None) -> Answer:
    """Sends a request and reads the response; disconnects after `leave_after` events, if given."""
    start = time.perf_counter()
    answer = Answer()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        answer.status = int(head[0].split()[1])
        answer.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        events = 0
        async for line in reader:
            answer.body += line
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                events += 1
                if has_text(line):
                    answer.first_token = answer.first_token or time.perf_counter() - start
                    answer.tokens += 1
                if leave_after is not None and events >= leave_after:
                    answer.left = True
                    break
    finally:
        writer.close()
    answer.seconds = time.perf_counter() - start
    return answer


def has_text(line: bytes) -> bool:
    """True if an event contains a token."""
    try:
        choices = json.loads(line[6:]).get("choices") or [{}]
    except json.JSONDecodeError:
        return False
    choice = choices[0]
    return bool((choice.get("delta") or {}).get("content") or choice.get("text"))


class Server:
    """A server process on a local port."""

    def __init__(self, command: list[str], port: int, log: Path):
        self.port = port
        self.log = open(log, "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def wait_ready(self, seconds: float = 120) -> None:
        deadline = time.time() + seconds
        while time.time() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server exited with {self.process.returncode}; see {self.log.name}")
            try:
                if urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2).status == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the server is not ready; see {self.log.name}")

    def metrics(self) -> dict[str, float]:
        """All metrics of oxidize, summed over their labels."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10).read().decode()
        sums: dict[str, float] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def memory(self) -> int:
        """Bytes of the process's anonymous memory."""
        fields = {line.split(":")[0]: line.split()[1] for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
                  if line.startswith(("RssAnon", "VmRSS"))}
        return 1024 * int(fields.get("RssAnon") or fields["VmRSS"])

    def stop(self, how: int = signal.SIGTERM, seconds: float = 60) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -1
        finally:
            self.log.close()
