#!/usr/bin/env python3
"""Compare oxidize with other engines on the same files and threads.

    bench_peers.py --oxidize target/release/oxidize [--llama-bench PATH] [--ik-llama-bench PATH]

Engines take turns for several rounds, and the best round of each counts, because disturbances only make a run slower.
The table also has the limit that memory bandwidth sets to generation: the measured read bandwidth divided by the bytes
read per token. Also measured: generation in a long context and for several sequences at once, the time to the first
answer, peak memory, and the speed while another process occupies a core.

The other engines are llama.cpp's `llama-bench` (LLAMA_BENCH, or on PATH) and that of ik_llama.cpp (IK_LLAMA_BENCH).
Without a llama-bench, the Python packages xllamacpp and mistralrs are used, if installed. The files are made by
`oxidize synth`, and the models of the test cache are measured, too. Needs only Python.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import bench_plot
from machine import identify


class BenchError(Exception):
    """An error for the user, printed without a traceback."""


@dataclass(frozen=True)
class Settings:
    """Settings of all engines."""

    threads: int
    prompt: int
    generate: int
    repetitions: int
    priority: bool
    depth: int = 0
    parallel: int = 0


@dataclass(frozen=True)
class Finished:
    """Result of a successful process."""

    output: str
    seconds: float
    peak_bytes: int


@dataclass
class Measured:
    """Best results of an engine on a file."""

    prompt: float = 0.0
    generate: float = 0.0
    deep: float = 0.0
    together: float = 0.0
    peak_bytes: int = 0

    def improve(self, other: "Measured") -> None:
        """Keeps the maximum of each speed and of the memory."""
        for name, value in vars(other).items():
            setattr(self, name, max(getattr(self, name), value))


@dataclass
class Row:
    """Results of a file."""

    file: Path
    bytes: int
    bytes_per_token: int
    engines: dict[str, Measured] = field(default_factory=dict)
    startup_seconds: float | None = None
    run_peak_bytes: int | None = None
    run_allowed_bytes: int | None = None
    contention: dict[str, float] = field(default_factory=dict)


def run(command: list[str], settings: Settings) -> Finished:
    """Runs a command; the peak memory is that of its process."""

    def raise_priority() -> None:
        # On Linux, each session is a scheduling group with its own priority.
        os.setsid()
        Path("/proc/self/autogroup").write_text("-20")

    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=raise_priority if settings.priority else None,
    )
    output, errors = "", ""
    try:
        assert process.stdout is not None and process.stderr is not None
        # Standard error is short and cannot fill its pipe while standard output is read.
        output, errors = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:
        process.kill()
        raise
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1:] or ["no message"]
        raise BenchError(f"{command[0]} failed with {process.returncode}: {last[0]}")
    scale = 1 if sys.platform == "darwin" else 1024
    return Finished(output, time.monotonic() - start, usage.ru_maxrss * scale)


class Engine:
    """An engine that can be measured."""

    name: str

    def measure(self, model: Path, settings: Settings) -> Measured:
        """Prompt and generation speed in tokens per second; a test of 0 tokens is skipped."""
        raise NotImplementedError

    def measure_more(self, model: Path, settings: Settings) -> Measured:
        """Generation in a long context and of several sequences at once, if supported."""
        return Measured()


@dataclass
class Oxidize(Engine):
    """This engine."""

    program: str
    name: str = "oxidize"

    def measure(self, model: Path, settings: Settings) -> Measured:
        command = [self.program, "bench", "-m", str(model), "--json", *bench_flags(settings)]
        finished = run(command, settings)
        tests = json.loads(finished.output)
        best = lambda key: max((max(t["samples"]) for t in tests if t[key] > 0), default=0.0)
        prompt, generate = best("n_prompt"), best("n_gen")
        return Measured(prompt, generate, peak_bytes=finished.peak_bytes)

    def measure_more(self, model: Path, settings: Settings) -> Measured:
        def generate(*flags: object) -> float:
            command = [self.program, "bench", "-m", str(model), "--json", "-p", "0", "-r", "1"]
            command += ["-t", str(settings.threads), *map(str, flags)]
            return max(json.loads(run(command, settings).output)[0]["samples"])

        return Measured(
            deep=generate("-n", LONG_TOKENS, "-d", settings.depth),
            together=generate(
                "-n", TOGETHER_TOKENS, "-d", TOGETHER_PROMPT, "--parallel", settings.parallel
            ),
        )

    def bandwidth(self, settings: Settings) -> float:
        command = [self.program, "bench", "--bandwidth", "--json", "-t", str(settings.threads)]
        return json.loads(run(command, settings).output)[0]["gigabytes_per_second"]

    def answer(self, model: Path, settings: Settings) -> Finished:
        """Generates one token after a short prompt in a new process."""
        return run(
            [self.program, "run", str(model), "Hello there", "--raw", "-n", "1"]
            + ["-t", str(settings.threads)],
            settings,
        )

    def inspect(self, model: Path) -> dict:
        command = [self.program, "inspect", "--json", str(model)]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@dataclass
class LlamaBench(Engine):
    """llama.cpp, or a fork with the same benchmark."""

    program: str
    name: str

    def measure(self, model: Path, settings: Settings) -> Measured:
        command = [self.program, "-m", str(model), "-o", "json", *bench_flags(settings)]
        finished = run(command, settings)
        tests = json.loads(finished.output)
        best = lambda key: max((max(t["samples_ts"]) for t in tests if t[key] > 0), default=0.0)
        prompt, generate = best("n_prompt"), best("n_gen")
        return Measured(prompt, generate, peak_bytes=finished.peak_bytes)

    def measure_more(self, model: Path, settings: Settings) -> Measured:
        common = ["-m", str(model), "-t", str(settings.threads)]
        usage = subprocess.run([self.program, "--help"], capture_output=True, text=True).stdout
        # Forks have different flags for a context before the test.
        if "--n-depth" in usage:
            depth = ["-p", "0", "-n", str(LONG_TOKENS), "-d", str(settings.depth)]
        else:
            depth = ["-p", "0", "-n", "0", "-gp", f"{settings.depth},{LONG_TOKENS}"]
        command = [self.program, *common, *depth, "-fa", "1", "-r", "1", "-o", "json"]
        tests = json.loads(run(command, settings).output)
        deep = max((max(test["samples_ts"]) for test in tests), default=0.0)
        return Measured(deep=deep, together=self.together(common, settings))

    def together(self, common: list[str], settings: Settings) -> float:
        """Result of llama-batched-bench in the same directory for several sequences; 0 without it."""
        program = Path(self.program).with_name("llama-batched-bench")
        if not program.exists():
            return 0.0
        sizes = {"-npp": TOGETHER_PROMPT, "-ntg": TOGETHER_TOKENS, "-npl": settings.parallel}
        sizes["-c"] = 2 * settings.parallel * (TOGETHER_PROMPT + TOGETHER_TOKENS)
        flags = [str(word) for pair in sizes.items() for word in pair]
        output = run([str(program), *common, *flags, "-fa", "on"], settings).output
        # The eighth column of the table is the generation speed.
        lines = [line.split("|") for line in output.splitlines()]
        cells = [line[8].strip() for line in lines if len(line) > 10]
        return max((float(cell) for cell in cells if cell.replace(".", "").isdigit()), default=0.0)


@dataclass
class Package(Engine):
    """An engine that is a Python package, run by a script in a new Python process."""

    name: str
    script: str

    def measure(self, model: Path, settings: Settings) -> Measured:
        numbers = [settings.threads, settings.prompt, settings.generate]
        arguments = [str(model.resolve()), *map(str, numbers)]
        finished = run([sys.executable, "-c", self.script, *arguments], settings)
        speeds = json.loads(finished.output.splitlines()[-1])
        return Measured(speeds["prompt"], speeds["generate"], finished.peak_bytes)


def bench_flags(settings: Settings) -> list[str]:
    """Flags that all benchmarks like llama.cpp's share."""
    flags = {"-t": settings.threads, "-p": settings.prompt, "-n": settings.generate}
    flags["-r"] = settings.repetitions
    return [str(word) for pair in flags.items() for word in pair]


XLLAMACPP = """
import json, sys
import xllamacpp as x
model, threads, prompt, generate = sys.argv[1], *map(int, sys.argv[2:])
params = x.CommonParams()
params.model.path = model
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_ctx, params.n_parallel, params.n_gpu_layers = prompt + generate + 64, 1, 0
params.warmup = True
server = x.Server(params)
timings = []
def complete(n_prompt, n_predict):
    request = {"prompt": [1 + i * 7919 % 20000 for i in range(n_prompt)], "n_predict": n_predict,
               "ignore_eos": True, "cache_prompt": False, "temperature": 0}
    answer = server.handle_completions(json.dumps(request))
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    return answer["timings"]
speeds = {"prompt": 0.0, "generate": 0.0}
if prompt:
    speeds["prompt"] = complete(prompt, 1)["prompt_per_second"]
if generate:
    speeds["generate"] = complete(8, generate)["predicted_per_second"]
print(json.dumps(speeds))
"""

MISTRALRS = """
import json, os, sys
model, threads, prompt, generate = sys.argv[1], *map(int, sys.argv[2:])
os.environ["RAYON_NUM_THREADS"] = str(threads)
from mistralrs import CompletionRequest, Runner, Which
runner = Runner(which=Which.GGUF(quantized_model_id=os.path.dirname(model),
                                 quantized_filename=os.path.basename(model)))
def complete(n_prompt, n_predict):
    request = CompletionRequest(prompt="ba " * n_prompt, model="default", max_tokens=n_predict,
                                temperature=0.0)
    return runner.send_completion_request(request).usage
speeds = {"prompt": 0.0, "generate": 0.0}
if prompt:
    speeds["prompt"] = complete(prompt, 1).avg_prompt_tok_per_sec
if generate:
    speeds["generate"] = complete(8, generate).avg_compl_tok_per_sec
print(json.dumps(speeds))
"""


def find_peers(options: argparse.Namespace) -> list[Engine]:
    """Available engines to compare with."""
    peers: list[Engine] = []
    llama_bench = options.llama_bench or shutil.which("llama-bench")
    if llama_bench:
        peers.append(LlamaBench(llama_bench, "llama.cpp"))
    if options.ik_llama_bench:
        peers.append(LlamaBench(options.ik_llama_bench, "ik_llama.cpp"))
    if not llama_bench:
        packages = {"xllamacpp": XLLAMACPP, "mistralrs": MISTRALRS}
        installed = (name for name in packages if importlib.util.find_spec(name))
        peers.extend(Package(name, packages[name]) for name in installed)
    return peers


# Tokens generated in a long context.
LONG_TOKENS = 16
# Tokens generated by each of several sequences, and the length of their prompts.
TOGETHER_TOKENS, TOGETHER_PROMPT = 32, 64
# Default context length, which determines the size of the KV cache.
CONTEXT = 4096
# Memory that a process may use besides the file and its KV cache.
ALLOWANCE = 200 << 20


def describe(file: Path, info: dict) -> Row:
    """Reads the sizes from a file's header."""
    tensors = {tensor["name"]: tensor for tensor in info["tensors"]}
    read = sum(tensor["bytes"] for tensor in info["tensors"])
    # A token reads only one row of the embeddings, unless they are also the output matrix.
    if "output.weight" in tensors and "token_embd.weight" in tensors:
        read -= tensors["token_embd.weight"]["bytes"]
    row = Row(file, info["bytes"], read)
    metadata, arch = info["metadata"], info["architecture"]
    number = lambda key, otherwise=None: metadata.get(f"{arch}.{key}", otherwise)
    heads, width = number("attention.head_count"), number("embedding_length")
    if isinstance(heads, int) and isinstance(width, int):
        key = number("attention.key_length", width // heads)
        value = number("attention.value_length", width // heads)
        context = min(CONTEXT, number("context_length", CONTEXT))
        slots = context * number("attention.head_count_kv", heads) * number("block_count")
        row.run_allowed_bytes = row.bytes + 2 * slots * (key + value) + ALLOWANCE
    return row


def make_files(oxidize: Oxidize, options: argparse.Namespace, directory: Path) -> list[Path]:
    """The requested synthetic files; missing ones are made."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for shape in options.shapes:
        for kind in options.types:
            file = directory / f"{shape}-{kind}.gguf"
            if not file.exists():
                print(f"making {file}", file=sys.stderr)
                command = [oxidize.program, "synth", "-o", str(file)]
                subprocess.run([*command, "--shape", shape, "--type", kind], check=True)
            files.append(file)
    return files


def cached_models() -> list[Path]:
    """Models in the test cache."""
    cache = os.environ.get("OXIDIZE_TEST_CACHE") or Path.home() / ".cache" / "oxidize"
    return sorted((Path(cache) / "models").glob("*.gguf"))


@contextmanager
def busy_core(settings: Settings) -> Iterator[None]:
    """Keeps the first core busy, with the same priority as the measured process."""
    script = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    if settings.priority:
        script += "os.setsid()\nopen('/proc/self/autogroup', 'w').write('-20')\n"
    # The script ends when this process ends for any reason.
    script += "parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def measure_row(
    row: Row, oxidize: Oxidize, peers: list[Engine], settings: Settings, options: argparse.Namespace
) -> None:
    """Measures a row; the engines take turns."""
    engines = [oxidize, *peers]
    kinds = [("", "measure")]
    if any(name in row.file.name for name in options.more):
        kinds.append((", long and together", "measure_more"))
    for (kind, measure), turn in itertools.product(kinds, range(options.rounds)):
        for engine in engines:
            print(f"{row.file.name}: {engine.name}{kind}, round {turn + 1}", file=sys.stderr)
            try:
                measured = getattr(engine, measure)(row.file, settings)
            except BenchError as error:
                print(f"  {error}", file=sys.stderr)
                continue
            row.engines.setdefault(engine.name, Measured()).improve(measured)
    try:
        answers = [oxidize.answer(row.file, settings) for _ in range(3)]
        row.startup_seconds = min(answer.seconds for answer in answers)
        row.run_peak_bytes = max(answer.peak_bytes for answer in answers)
    except BenchError as error:
        # An embedding model cannot generate text.
        print(f"  {error}", file=sys.stderr)
    if options.contention:
        # Few tokens: an engine whose threads wait for each other takes seconds per token.
        n_tokens = min(settings.generate, 16)
        decode = Settings(settings.threads, 0, n_tokens, 1, settings.priority)
        with busy_core(settings):
            for engine in engines:
                quiet = row.engines.get(engine.name, Measured()).generate
                if quiet > 0:
                    print(f"{row.file.name}: {engine.name}, one core busy", file=sys.stderr)
                    busy = engine.measure(row.file, decode).generate
                    row.contention[engine.name] = busy / quiet


def table(rows: list[Row], engines: list[str], settings: Settings, bandwidth: float) -> str:
    """Speeds as a Markdown table."""
    peers = engines[1:]
    head = ["model", "test", "oxidize t/s"]
    head += [column for peer in peers for column in (f"{peer} t/s", "ratio")]
    head += ["bandwidth limit t/s", "of limit"]
    lines = [head, ["---", "---"] + ["--:"] * (len(head) - 2)]
    for row in rows:
        limit = bandwidth * 1e9 / row.bytes_per_token
        for test, name in tests_of(settings):
            speed = lambda engine: getattr(row.engines.get(engine, Measured()), test)
            ours = speed("oxidize")
            if ours == 0:
                continue
            cells = [row.file.stem, name, f"{ours:.1f}"]
            for peer in peers:
                theirs = speed(peer)
                cells += [f"{theirs:.1f}", f"{ours / theirs:.2f}×"] if theirs else ["–", "–"]
            is_decode = test == "generate"
            cells += [f"{limit:.1f}", f"{ours / limit:.0%}"] if is_decode else ["", ""]
            lines.append(cells)
    return markdown(lines)


def tests_of(settings: Settings) -> list[tuple[str, str]]:
    """Fields of a measurement and names of the tests."""
    return [
        ("prompt", f"pp{settings.prompt}"),
        ("generate", f"tg{settings.generate}"),
        ("deep", f"tg{LONG_TOKENS} @ d{settings.depth}"),
        ("together", f"tg{TOGETHER_TOKENS} × {settings.parallel}"),
    ]


def footprint(rows: list[Row], engines: list[str]) -> str:
    """Startup time, memory and contention as a Markdown table."""
    head = ["model", "first token after", "peak memory", "file + KV + 200 MiB"]
    busy = [engine for engine in engines if any(engine in row.contention for row in rows)]
    head += [f"{engine}, one core busy" for engine in busy]
    lines = [head, ["---"] + ["--:"] * (len(head) - 1)]
    mib = lambda n: "–" if n is None else f"{n / (1 << 20):.0f} MiB"
    for row in rows:
        seconds = "–" if row.startup_seconds is None else f"{row.startup_seconds:.2f} s"
        cells = [row.file.stem, seconds, mib(row.run_peak_bytes), mib(row.run_allowed_bytes)]
        share = lambda engine: row.contention.get(engine)
        cells += ["–" if share(e) is None else f"{share(e):.0%}" for e in busy]
        lines.append(cells)
    return markdown(lines)


def markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_json(rows: list[Row], machine: dict, settings: Settings) -> str:
    def plain(value: object) -> object:
        return str(value) if isinstance(value, Path) else vars(value)

    tests = dict(tests_of(settings))
    data = {"machine": machine, "settings": vars(settings), "tests": tests, "results": rows}
    return json.dumps(data, default=plain, indent=2) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = lambda text: [word for word in text.split(",") if word]
    parser.add_argument("--oxidize", default="target/release/oxidize", help="path of oxidize")
    parser.add_argument("--llama-bench", default=os.environ.get("LLAMA_BENCH"))
    parser.add_argument("--ik-llama-bench", default=os.environ.get("IK_LLAMA_BENCH"))
    parser.add_argument("--shapes", type=words, default=["1b"], help="shapes of synthetic files")
    parser.add_argument("--types", type=words, default=["Q4_K_M", "Q8_0", "Q4_0", "Q6_K", "F16"])
    parser.add_argument("-m", "--model", action="append", type=Path, help="model to measure instead of those of the test cache")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("-p", "--prompt", type=int, default=512, help="prompt tokens; 0 skips the test")
    parser.add_argument("-n", "--generate", type=int, default=64, help="generated tokens; 0 skips the test")
    parser.add_argument("-r", "--repetitions", type=int, default=2, help="repetitions in each process")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all engines")
    parser.add_argument("--contention", action="store_true", help="also measure with one core busy")
    parser.add_argument("--depth", type=int, default=4096, help="length of the long context")
    parser.add_argument("--parallel", type=int, default=16, help="number of sequences at once")
    parser.add_argument(
        "--more",
        type=words,
        default=["1b-Q4_K_M", "SmolLM2"],
        help="parts of the names of files that are also measured in a long context and for several sequences",
    )
    parser.add_argument(
        "--priority", action="store_true", help="run at the highest priority (Linux, root)"
    )
    parser.add_argument("--out", type=Path, default=Path("target/bench-peers"))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    settings = Settings(
        options.threads,
        options.prompt,
        options.generate,
        options.repetitions,
        options.priority,
        options.depth,
        options.parallel,
    )
    oxidize = Oxidize(options.oxidize)
    peers = find_peers(options)
    if not peers:
        print("no other engine found: set LLAMA_BENCH, or install xllamacpp", file=sys.stderr)
    files = make_files(oxidize, options, options.out / "models")
    files += cached_models() if options.model is None else options.model
    engines = [oxidize.name, *(peer.name for peer in peers)]
    bandwidth = max(oxidize.bandwidth(settings) for _ in range(options.rounds))
    machine = {**identify(), "bandwidth_gb_s": bandwidth, "load": os.getloadavg()}
    rows: list[Row] = []
    for file in files:
        row = describe(file, oxidize.inspect(file))
        measure_row(row, oxidize, peers, settings, options)
        rows.append(row)
        # Written after each file, so that an interrupted run keeps its results.
        (options.out / "results.json").write_text(as_json(rows, machine, settings))
    print(f"{machine['processor']}, {settings.threads} threads, reading {bandwidth:.1f} GB/s;", end=" ")
    print(f"load {machine['load'][0]:.1f}\n")
    print(table(rows, engines, settings, bandwidth))
    print()
    print(footprint(rows, engines))
    svg = bench_plot.draw(rows, engines, tests_of(settings), settings.threads, bandwidth)
    (options.out / "peers.svg").write_text(svg)
    print(f"\n{options.out}/results.json and peers.svg written", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (BenchError, subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"error: {error}")
