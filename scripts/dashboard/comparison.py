"""A comparison of instruction counts, in Markdown."""

from .measurements import MeasurementError
from .measurements import counts as plain_counts

# Changes up to this are not worth a line.
THRESHOLD_PERCENT = 1


def counts(data: dict) -> dict[str, int]:
    """Counts by name such as `Q4_K x4`, of bench_check.py, instruction_counts.json or a record of the history."""
    if "runs" not in data:
        return plain_counts(data)
    runs = [run for run in data["runs"] if run["kind"] == "instructions"]
    if not runs:
        raise MeasurementError("the record has no instruction counts")
    return {f"{result['kernel']} x{result['tokens']}": result["values"]["oxidize"] for result in runs[0]["results"]}


def markdown(old: dict[str, int], new: dict[str, int]) -> str:
    """The changes above 1%, the worst first, and which kernels were added or removed."""
    both = [name for name in old if name in new]
    ratios = {name: new[name] / old[name] for name in both}
    exceeds = lambda name: 100 * abs(new[name] - old[name]) > THRESHOLD_PERCENT * old[name]
    changed = sorted(filter(exceeds, both), key=lambda name: -ratios[name])
    more = sum(ratios[name] > 1 for name in changed)
    lines = ["### Instruction counts", ""]
    if changed:
        summary = f"{more} of {len(both)} kernels take more instructions than before, {len(changed) - more} fewer (changes above 1 %)."
        lines += [summary, "", "| kernel | before | after | change |", "|---|--:|--:|--:|"]
        for name in changed:
            sign = "**" if ratios[name] > 1 else ""
            lines.append(f"| {name} | {old[name]:,} | {new[name]:,} | {sign}{100 * (ratios[name] - 1):+.1f} %{sign} |")
    else:
        lines.append(f"No change above 1 % in {len(both)} kernels.")
    for what, names in (("New", new.keys() - old.keys()), ("Gone", old.keys() - new.keys())):
        if names:
            lines += ["", f"{what}: {', '.join(sorted(names))}."]
    return "\n".join([*lines, ""])
