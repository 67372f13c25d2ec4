#!/usr/bin/env python3
"""Measurements by commit: a history in the repository, a page of it, and a comparison of instruction counts.

    dashboard.py [--out target/dashboard/index.html] [--history docs/dashboard/history] [--repository URL]
    dashboard.py record peers|serve|instructions|quantize|coverage FILE.json
    dashboard.py record kl FILE.json --model NAME --type TYPE [--importance NAME]
    dashboard.py record size PROGRAM [--profile release] [--target TRIPLE]
    dashboard.py compare OLD NEW
    dashboard.py --self-test

Without a subcommand, checks the history and writes the page: one file that loads nothing.

`record` adds measurements to the history, in the file of their commit and machine. They are the output of
bench_peers.py and bench_serve.py (results.json), bench_check.py --json, quantize_peers.py --json,
`cargo llvm-cov report --json` and `oxidize compare --json`, or the size of a program. The commit is the one that is
checked out; if files have changed since, --commit has to name it.

`compare` prints in Markdown which instruction counts changed by more than 1%, of two files of bench_check.py --json,
instruction_counts.json or the history.

Needs only Python.
"""

import argparse
import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import machine
from book import repository
from dashboard import comparison, history, measurements, page, self_test

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "docs/dashboard/history"


class DashboardError(Exception):
    """An error for the user, printed without a traceback."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise DashboardError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def measured_commit(name: str | None) -> tuple[str, str]:
    """A commit and its time in UTC; without a name, the one that is checked out, if nothing has changed since."""
    if name is None:
        if changed := git("status", "--porcelain", "--untracked-files=no", "--", ":!docs/dashboard"):
            first = changed.splitlines()[0][2:].strip()
            raise DashboardError(f"{first} has changed since the last commit: name the measured commit with --commit")
        name = "HEAD"
    commit = git("rev-parse", "--verify", f"{name}^{{commit}}")
    seconds = int(git("show", "--no-patch", "--format=%ct", commit))
    return commit, datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_json(path: Path) -> dict:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DashboardError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise DashboardError(f"{path}: expected an object, found {history.kind_of(data)}")
    return data


def read_counts(path: Path) -> dict[str, int]:
    """Instruction counts of a file; a record of the history is checked."""
    data = read_json(path)
    return comparison.counts(history.check(data, path.name) if "runs" in data else data)


def measured(options: argparse.Namespace) -> tuple[dict, list[dict]]:
    """The machine and the runs of the file that `record` was given."""
    if options.what == "size":
        target = options.target or default_target()
        return machine.identify(), measurements.size(options.file.stat().st_size, "oxidize", target, options.profile)
    data = read_json(options.file)
    try:
        if options.what == "kl":
            runs = measurements.compare(data, options.model, options.type, options.importance)
        else:
            runs = measurements.READERS[options.what](data)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise DashboardError(f"{options.file}: not the JSON of {options.what}: {error!r}") from None
    if options.what == "instructions":
        return measurements.COUNTED, runs
    here = data.get("machine") or machine.identify()
    return {name: here[name] for name in (*history.IDENTITY, "note") if name in here}, runs


def default_target() -> str:
    """The target that rustc builds for."""
    lines = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout.splitlines()
    return next(line.removeprefix("host: ") for line in lines if line.startswith("host: "))


def record(options: argparse.Namespace) -> None:
    commit, date = measured_commit(options.commit)
    where, runs = measured(options)
    for run in runs:
        for field in ("title", "command", "note"):
            if value := getattr(options, field):
                run[field] = value
    new = {"format": history.FORMAT, "commit": commit, "date": date, "machine": where, "runs": []}
    path = options.history / history.file_name(new)
    if path.exists():
        new = history.parse(path.read_text(encoding="utf-8"), path.name)
    history.merge(new, runs)
    history.check(new, path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(history.dump(new), encoding="utf-8")
    figures = sum(len(result["values"]) for run in runs for result in run["results"])
    print(f"{figures} figure{'s' * (figures > 1)} of {history.machine_name(where)} recorded in {path}")


def write_page(options: argparse.Namespace) -> None:
    records = history.load(options.history)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page.render(records, options.repository), encoding="utf-8")
    print(f"{len(records)} records, {options.out}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=Path, default=HISTORY, help="directory of the records")
    parser.add_argument("--out", type=Path, default=ROOT / "target/dashboard/index.html", help="file of the page")
    parser.add_argument("--repository", default=repository(), help="address of the repository, which commits link to")
    parser.add_argument("--self-test", action="store_true")
    commands = parser.add_subparsers(dest="action")
    adding = commands.add_parser("record", help="add measurements to the history")
    adding.add_argument("what", choices=[*measurements.READERS, "kl", "size"])
    adding.add_argument("file", type=Path)
    adding.add_argument("--commit", help="the measured commit (default: the one that is checked out)")
    adding.add_argument("--title", help="name of the experiment, if it is another than usual")
    adding.add_argument("--command", help="command that repeats the measurement")
    adding.add_argument("--note", help="conditions that matter for reading the figures")
    adding.add_argument("--model", help="kl: model of the compared files")
    adding.add_argument("--type", help="kl: type of the quantized file")
    adding.add_argument("--importance", default="none", help="kl: importance matrix (default: none)")
    adding.add_argument("--profile", default="release", help="size: profile of the build")
    adding.add_argument("--target", help="size: target of the build (default: that of rustc)")
    comparing = commands.add_parser("compare", help="compare instruction counts of two files, in Markdown")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.action == "record" and options.what == "kl" and not (options.model and options.type):
        parser.error("record kl needs --model and --type")
    return options


def main() -> None:
    options = arguments()
    if options.self_test:
        self_test.run()
    elif options.action == "record":
        record(options)
    elif options.action == "compare":
        print(comparison.markdown(*map(read_counts, (options.old, options.new))), end="")
    else:
        write_page(options)


if __name__ == "__main__":
    try:
        main()
    except (DashboardError, history.HistoryError, measurements.MeasurementError, OSError) as error:
        sys.exit(f"dashboard: error: {error}")
