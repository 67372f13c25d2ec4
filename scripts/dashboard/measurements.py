"""Runs for the history, from the JSON that the measuring programs write.

Each function takes the parsed JSON and returns runs as history.py describes them, without `command` and `note` where
the JSON does not tell them.
"""

import re
from collections.abc import Callable
from pathlib import PurePath

CRATE = re.compile(r"(?:^|[/\\])crates[/\\]([^/\\]+)[/\\]src[/\\]")
COUNTED = {"processor": "callgrind (AVX2 kernels)", "note": "Counts do not depend on the processor, only on the compiler."}


class MeasurementError(Exception):
    """The JSON is not of the program that it should be of."""


def model_name(file: str) -> str:
    """The model of a file: its name without the ending, and `1B Q4_K_M` for the synthetic 1b-Q4_K_M.gguf."""
    stem = PurePath(file.replace("\\", "/")).name.removesuffix(".gguf")
    shape = re.fullmatch(r"(\d+[bm])-(.+)", stem)
    return f"{shape.group(1).upper()} {shape.group(2)}" if shape else stem


def peers(data: dict) -> list[dict]:
    """Speed, memory and start-up from results.json of bench_peers.py."""
    settings, tests = data["settings"], data["tests"]
    common = {"threads": settings["threads"], "command": "make bench-peers", "source": "scripts/bench_peers.py"}
    speed, memory, startup = [], [], []
    for row in data["results"]:
        model, engines = model_name(row["file"]), row["engines"]
        for field, test in tests.items():
            values = {name: round(measured[field], 2) for name, measured in engines.items() if measured[field] > 0}
            if values:
                result = {"model": model, "test": test, "values": values}
                if field == "generate":
                    result["limit"] = round(data["machine"]["bandwidth_gb_s"] * 1e9 / row["bytes_per_token"], 2)
                speed.append(result)
        if row["run_peak_bytes"] is not None:
            result = {"model": model, "test": "run, first token", "values": {"oxidize": row["run_peak_bytes"]}}
            if row["run_allowed_bytes"] is not None:
                result["limit"] = row["run_allowed_bytes"]
            memory.append(result)
        peaks = {name: measured["peak_bytes"] for name, measured in engines.items() if measured["peak_bytes"] > 0}
        if peaks:
            memory.append({"model": model, "test": "benchmark", "values": peaks})
        if row["startup_seconds"] is not None:
            startup.append({"model": model, "values": {"oxidize": round(row["startup_seconds"], 3)}})
    bandwidth = f"Memory was read at {data['machine']['bandwidth_gb_s']:.1f} GB/s."
    runs = [
        {"kind": "speed", "title": "Beside other engines", **common, "note": bandwidth, "results": speed},
        {"kind": "memory", "title": "Peak resident memory", **common, "results": memory},
        {"kind": "startup", "title": "First token of a new process", **common, "results": startup},
    ]
    return [run for run in runs if run["results"]]


def serve(data: dict) -> list[dict]:
    """Throughput and memory from results.json of bench_serve.py."""
    settings = data["settings"]
    common = {"threads": settings["threads"], "command": "make bench-serve", "source": "scripts/bench_serve.py"}
    note = f"Prompts of {settings['words']} words, answers of {settings['tokens']} tokens."
    model = model_name(settings["model"])
    speeds: dict[int, dict[str, float]] = {}
    most: dict[str, tuple[int, int]] = {}
    for name, result in data["streams"].items():
        engine, _, streams = name.rpartition("/")
        speeds.setdefault(int(streams), {})[engine] = round(result["rate"], 2)
        most[engine] = max(most.get(engine, (0, 0)), (int(streams), result["memory"]))
    results = [
        {"model": model, "test": f"serve, {streams} streams", "values": values} for streams, values in sorted(speeds.items())
    ]
    idle = {"model": model, "test": "serve, at start", "values": data["idle"]}
    loaded = {"model": model, "test": "serve, after all streams", "values": {name: n for name, (_, n) in most.items()}}
    return [
        {"kind": "speed", "title": "Server, all streams together", **common, "note": note, "results": results},
        {"kind": "memory", "title": "Memory of the server", **common, "note": note, "results": [idle, loaded]},
    ]


def counts(data: dict) -> dict[str, int]:
    """Instruction counts by name such as `Q4_K x4`, of bench_check.py --json or of instruction_counts.json."""
    found = data.get("counts", data)
    for name, count in found.items():
        if not re.fullmatch(r"\S+ x\d+", name) or type(count) is not int or count < 1:
            raise MeasurementError(f"{name}: expected a count of instructions such as \"Q4_K x4\": 146249, found {count!r}")
    return found


def instructions(data: dict) -> list[dict]:
    """Instruction counts of bench_check.py."""
    results = []
    for name, count in counts(data).items():
        kernel, _, tokens = name.rpartition(" x")
        results.append({"kernel": kernel, "tokens": int(tokens), "values": {"oxidize": count}})
    run = {"kind": "instructions", "title": "One product", "command": "make bench-check", "source": "scripts/bench_check.py"}
    if data.get("compiler"):
        run["note"] = data["compiler"]
    return [{**run, "results": results}]


def compare(data: dict, model: str, type_: str, importance: str) -> list[dict]:
    """KL divergence of `oxidize compare --json`."""
    result = {"model": model, "type": type_, "importance": importance, "values": {"oxidize": data["mean_kl"]}}
    title = f"Mean over {data['chunks']} chunks of {data['n_ctx']}"
    return [{"kind": "kl", "title": title, "source": "oxidize compare", "results": [result]}]


def quantize(data: dict) -> list[dict]:
    """KL divergence beside llama.cpp's quantizer, of quantize_peers.py --json."""
    model = model_name(data["settings"]["model"])
    results = []
    for row in data["results"]:
        values = {name: row[name] for name in ("oxidize", "llama.cpp")}
        results.append({"model": model, "type": row["type"], "importance": row["importance"], "values": values})
    title = f"Mean over {data['settings']['chunks']} chunks of {data['settings']['ctx']}"
    return [{"kind": "kl", "title": title, "source": "scripts/quantize_peers.py", "results": results}]


def coverage(data: dict) -> list[dict]:
    """Covered lines and functions by crate, of `cargo llvm-cov report --json`."""
    if data.get("type") != "llvm.coverage.json.export":
        raise MeasurementError("not the output of cargo llvm-cov report --json")
    sums: dict[str, dict[str, list[int]]] = {}
    for file in data["data"][0]["files"]:
        crate = CRATE.search(file["filename"])
        for name in filter(None, (crate and crate.group(1), "workspace")):
            for what in ("lines", "functions"):
                pair = sums.setdefault(name, {}).setdefault(what, [0, 0])
                pair[0] += file["summary"][what]["covered"]
                pair[1] += file["summary"][what]["count"]
    results = []
    for name in sorted(sums, key=lambda name: (name == "workspace", name)):
        values = {what: round(100 * covered / count, 2) for what, (covered, count) in sums[name].items() if count}
        if values:
            results.append({"crate": name, "values": values})
    if not results:
        raise MeasurementError("no file of the report has lines")
    run = {"kind": "coverage", "title": "Covered by tests", "command": "make coverage", "source": "cargo llvm-cov"}
    return [{**run, "results": results}]


def size(bytes_: int, name: str, target: str, profile: str) -> list[dict]:
    """Size of a program."""
    result = {"target": target, "profile": profile, "values": {name: bytes_}}
    command = f"cargo build --profile {profile} -p oxidize-cli --target {target}"
    return [{"kind": "size", "title": "Program", "command": command, "source": "scripts/dashboard.py", "results": [result]}]


# Outputs that need nothing beside the JSON.
READERS: dict[str, Callable[[dict], list[dict]]] = {
    "peers": peers,
    "serve": serve,
    "instructions": instructions,
    "quantize": quantize,
    "coverage": coverage,
}
