"""Charts of the page: lines over commits as SVG, bars and dots as HTML that reflows on a phone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from .history import KINDS, Point

# Colors of the style sheet by name of a value; other names take the rest in turn.
COLORS = {"oxidize": 0, "llama.cpp": 1, "llama-server": 1, "ik_llama.cpp": 2, "lines": 0, "functions": 1}
N_COLORS = 6

# Bytes are drawn as MiB.
AXIS_SCALE = {"bytes": 1 << 20}

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 190, 46, 14, 12, 26
MARKERS = ("circle", "square", "triangle")


def color(name: str, index: int) -> int:
    """Number of the color of a value."""
    return COLORS.get(name, index % N_COLORS)


def amount(kind: str, value: float) -> str:
    """A value with its unit."""
    match KINDS[kind].unit:
        case "tokens/s":
            # Pages state some speeds without decimals.
            return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.1f}"
        case "bytes":
            return f"{value / (1 << 20):,.0f} MiB" if value >= 100 << 20 else f"{value / (1 << 20):.2f} MiB"
        case "seconds":
            return f"{value:.2f} s"
        case "nats":
            return f"{value:.6f}".rstrip("0").ljust(6, "0") if value < 0.01 else f"{value:.4f}"
        case "percent":
            return f"{value:.1f} %"
    return f"{value:,.0f}"


@dataclass(frozen=True)
class Line:
    """Points that are joined, all of one machine."""

    name: str
    color: int
    points: list[Point]


def nice_ceiling(value: float) -> float:
    """The next larger 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999999)


def marker(shape: str, x: float, y: float, attributes: str) -> str:
    if shape == "square":
        return f'<rect x="{x - 3.4:.1f}" y="{y - 3.4:.1f}" width="6.8" height="6.8" {attributes}/>'
    if shape == "triangle":
        return f'<path d="M{x:.1f} {y - 4.4:.1f}l4.4 7.8h-8.8z" {attributes}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.7" {attributes}/>'


def line_chart(
    title: str,
    lines: list[Line],
    kind: str,
    run_number: Callable[[Point], int],
    relative: bool = False,
) -> str:
    """Values by commit. Each line starts at 100 if the chart is relative."""
    commits = sorted({(point.record["date"], point.record["commit"]) for line in lines for point in line.points})
    at = {commit: index for index, (_, commit) in enumerate(commits)}
    step = (WIDTH - LEFT - RIGHT) / max(len(commits), 2)
    place = lambda point: LEFT + (at[point.record["commit"]] + 0.5) * step
    scale = AXIS_SCALE.get(KINDS[kind].unit, 1)
    shown = lambda line, point: 100 * point.value / (line.points[0].value or 1) if relative else point.value / scale
    values = [shown(line, point) for line in lines for point in line.points]
    ticks = relative_ticks(values) if relative else [nice_ceiling(max(values) * 1.04) * n / 4 for n in range(5)]
    bottom, top = ticks[0], ticks[-1]
    height = lambda value: HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
    parts = []
    for value in ticks:
        label = f"{value:.0f} %" if relative else axis_label(value)
        y = height(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>')
    every = math.ceil(len(commits) / 5)
    for index, (_, commit) in enumerate(commits):
        if (len(commits) - 1 - index) % every == 0:
            x = LEFT + (index + 0.5) * step
            parts.append(f'<text class="tick mono" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{commit[:7]}</text>')
    marks, told = [], []
    for number, line in enumerate(lines):
        places = [(place(point), height(shown(line, point))) for point in line.points]
        runs = " ".join(str(run_number(point)) for point in line.points)
        if len(places) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            parts.append(f'<path class="line c{line.color}" data-runs="{runs}" d="M{path}"/>')
        for point, (x, y) in zip(line.points, places):
            label = f"{title}, {line.name}: {amount(kind, point.value)} {plain_unit(kind)}".strip()
            attributes = f'class="point c{line.color}" data-run="{run_number(point)}" data-label="{escape(label)}"'
            marks.append((x, number, marker(MARKERS[number % len(MARKERS)], x, y, attributes)))
        told.append(f"{line.name}: " + ", ".join(amount(kind, point.value) for point in line.points))
    spoken = f"{title}, by commit from {commits[0][1][:7]} to {commits[-1][1][:7]}. " + "; ".join(told)
    parts += [mark for *_, mark in sorted(marks)]
    body = "".join(parts)
    return (
        f'<figure class="card"><figcaption>{escape(title)}</figcaption>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{escape(spoken)}">{body}</svg>'
        "</figure>"
    )


def relative_ticks(values: list[float]) -> list[float]:
    """At most seven round percentages around some values."""
    low, high = min(values), max(values)
    step = next(step for step in (2, 5, 10, 20, 50, 100, 10 ** math.ceil(math.log10(max(high, 1)))) if high - low <= 5 * step)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(step * n) for n in range(first - (first == last), last + (first == last) + 1)]


def axis_label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def axis_unit(kind: str) -> str:
    """The unit of the axis of a line chart."""
    unit = KINDS[kind].unit
    return {"bytes": "MiB", "percent": "%"}.get(unit, unit)


def plain_unit(kind: str) -> str:
    """The unit, where `amount` does not print it."""
    return KINDS[kind].unit if KINDS[kind].unit in ("tokens/s", "nats", "instructions") else ""


@dataclass(frozen=True)
class BarRow:
    """Values that are compared with each other, the first with all others."""

    label: str
    values: dict[str, float]
    limit: float | None = None


def bar_card(title: str, rows: list[BarRow], kind: str, run: int, lower_is_better: bool = False) -> str:
    """Bars. Rows of several values are scaled to their longest bar, rows of one value to the longest of the card."""
    alone = all(len(row.values) == 1 for row in rows)
    largest = max(max(*row.values.values(), row.limit or 0) for row in rows)
    parts = []
    for row in rows:
        longest = largest if alone else max(*row.values.values(), row.limit or 0)
        ours = row.values.get("oxidize")
        bars = []
        for index, (name, value) in enumerate(row.values.items()):
            share = 100 * value / longest if longest else 0
            ratio = ""
            if ours and value and name != "oxidize":
                factor = value / ours if lower_is_better else ours / value
                ratio = f'<span class="ratio{"" if factor >= 1 else " behind"}">{factor:.2f}×</span>'
            mark = ""
            if row.limit is not None and name == "oxidize":
                mark = f'<i class="limit" style="left:{100 * row.limit / longest:.1f}%"></i>'
            label = f"{row.label}, {name}: {amount(kind, value)} {plain_unit(kind)}".strip()
            if mark:
                label += f" (limit {amount(kind, row.limit)})"
            bars.append(
                f'<div class="bar" data-run="{run}" data-label="{escape(label)}"><span class="who">{escape(name)}</span>'
                f'<span class="track"><i class="fill c{color(name, index)}" style="width:{share:.1f}%"></i>{mark}</span>'
                f'<span class="value">{amount(kind, value)}</span>{ratio or "<span></span>"}</div>'
            )
        parts.append(f'<div class="row"><div class="label">{escape(row.label)}</div>{"".join(bars)}</div>')
    return f'<div class="card"><h4>{escape(title)}</h4>{"".join(parts)}</div>'


@dataclass(frozen=True)
class Dot:
    """A value on the logarithmic axis; hollow for other engines than oxidize."""

    label: str
    value: float
    color: int
    hollow: bool


def dot_card(title: str, rows: list[tuple[str, list[Dot]]], kind: str, run: int) -> str:
    """Values of each row as dots on a logarithmic axis."""
    values = [dot.value for _, dots in rows for dot in dots if dot.value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high += high == low
    place = lambda value: 100 * (math.log10(max(value, 10**low)) - low) / (high - low)
    powers, every = range(low, high + 1), math.ceil((high - low) / 4)
    left = lambda power: f'style="left:{100 * (power - low) / (high - low):.1f}%"'
    lines = "".join(f"<b {left(power)}></b>" for power in powers)
    axis = "".join(f"<span {left(power)}>{power_of_ten(power)}</span>" for power in powers if (high - power) % every == 0)
    parts = []
    for label, dots in rows:
        # Oxidize's dots lie above those of others.
        marks = "".join(
            f'<i class="dot c{dot.color}{" hollow" if dot.hollow else ""}" style="left:{place(dot.value):.2f}%" '
            f'data-run="{run}" data-label="{escape(f"{label}, {dot.label}: {amount(kind, dot.value)} {plain_unit(kind)}")}"></i>'
            for dot in sorted(dots, key=lambda dot: not dot.hollow)
        )
        parts.append(f'<div class="dots"><span class="label">{escape(label)}</span><span class="axis">{lines}{marks}</span></div>')
    return (
        f'<div class="card"><h4>{escape(title)}</h4>{"".join(parts)}'
        f'<div class="dots"><span class="label"></span><span class="axis scale">{axis}</span></div></div>'
    )


def power_of_ten(power: int) -> str:
    return f"{10**power:g}" if power >= -3 else "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def card_columns(cards: list[tuple[int, str]]) -> str:
    """Cards of given heights in two columns, each below the shorter one; one column on a narrow screen."""
    heights, stacks = [0, 0], ["", ""]
    for height, card in cards:
        shorter = heights.index(min(heights))
        heights[shorter] += height
        stacks[shorter] += card
    return '<div class="wide">' + "".join(f"<div>{stack}</div>" for stack in stacks if stack) + "</div>"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column names the row."""
    cells = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
