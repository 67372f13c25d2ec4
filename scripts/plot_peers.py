#!/usr/bin/env python3
"""Draw docs/images/peers.svg from docs/images/peers.json.

    plot_peers.py [DATA.json OUT.svg]

The data are the tokens per second of the results table in docs/performance-tuning.md; change both
together. Bars show speeds relative to the last engine, which is the line at 1×. Needs only Python.
"""

import json
import sys
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"

LABEL_WIDTH, PLOT_WIDTH, PANEL_GAP, MARGIN = 168, 272, 34, 20
BAR_HEIGHT, ROW_HEIGHT, TITLE_HEIGHT, AXIS_HEIGHT, HEADER = 13, 36, 36, 30, 60
# Maximum width of the label beside a bar.
VALUE_WIDTH = 92

STYLE = """\
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
       fill: #1f2328; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.title { font-weight: 600; font-size: 13px; }
.heading { font-weight: 600; font-size: 15px; }
.note, .value { fill: #59636e; font-size: 11px; }
.value { paint-order: stroke; stroke: #ffffff; stroke-width: 3px; }
.bar0 { fill: #d9480f; }
.bar1 { fill: #4a90d9; }
.base { stroke: #59636e; stroke-width: 1.5; }
.grid { stroke: #d1d9e0; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .card { fill: #151b23; stroke: #3d444d; }
  .note, .value { fill: #9198a1; }
  .value { stroke: #151b23; }
  .bar0 { fill: #f76707; }
  .bar1 { fill: #58a6ff; }
  .base { stroke: #9198a1; }
  .grid { stroke: #2f3742; }
}"""


def text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """A text element."""
    attributes = f' class="{style}"' if style else ""
    if anchor != "start":
        attributes += f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(content)}</text>'


def speed(value: float) -> str:
    """Tokens per second with three or four digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def plot(panel: dict, x: float, y: float, most: float) -> list[str]:
    """The bars of a panel, whose first row begins at y."""
    parts = []
    rows = panel["rows"]
    scale = (PLOT_WIDTH - VALUE_WIDTH) / most
    bottom = y + len(rows) * ROW_HEIGHT
    step = 2 if most > 5 else 1
    for tick in range(0, int(most) + 1, step):
        at = x + tick * scale
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{y:.1f}" y2="{bottom:.1f}"/>'
        )
        parts.append(text(at, bottom + 15, f"{tick}×", "note", "middle"))
    labels = []
    for row, speeds in enumerate(rows.values()):
        *others, base = speeds
        top = y + row * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT * len(others)) / 2
        for i, value in enumerate(others):
            if value is None:
                continue
            at, ratio = top + i * BAR_HEIGHT, value / base
            width = ratio * scale
            parts.append(
                f'<rect class="bar{i}" x="{x:.1f}" y="{at:.1f}" width="{width:.1f}" '
                f'height="{BAR_HEIGHT - 1}"/>'
            )
            label = f"{ratio:.2f}×  ({speed(value)})"
            labels.append(text(x + width + 5, at + BAR_HEIGHT - 3, label, "value"))
    at = x + scale
    parts.append(f'<line class="base" x1="{at:.1f}" x2="{at:.1f}" y1="{y:.1f}" y2="{bottom:.1f}"/>')
    return parts + labels


def draw(data: dict) -> str:
    """The whole picture: two panels in a row, which share the labels of their rows."""
    panels, engines = data["panels"], data["engines"]
    width = 2 * MARGIN + LABEL_WIDTH + 2 * PLOT_WIDTH + PANEL_GAP
    body, y = [], float(HEADER)
    for left, right in zip(panels[::2], panels[1::2]):
        assert list(left["rows"]) == list(right["rows"])
        y += TITLE_HEIGHT
        for row, label in enumerate(left["rows"]):
            middle = y + row * ROW_HEIGHT + ROW_HEIGHT / 2 + 4
            body.append(text(MARGIN + LABEL_WIDTH - 10, middle, label, anchor="end"))
        for column, panel in enumerate((left, right)):
            x = MARGIN + LABEL_WIDTH + column * (PLOT_WIDTH + PANEL_GAP)
            ratios = [
                value / speeds[-1] for speeds in panel["rows"].values() for value in speeds if value
            ]
            body.append(text(x, y - 10, panel["title"], "title"))
            body += plot(panel, x, y, max(ratios))
        y += len(left["rows"]) * ROW_HEIGHT + AXIS_HEIGHT
    height = y + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
        f'width="{width}" height="{height:.0f}" role="img">',
        f"<title>Speed relative to {escape(engines[-1])}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1:.0f}" '
        'rx="8"/>',
        text(MARGIN, 28, f"Speed relative to {engines[-1]}", "heading"),
        text(MARGIN, 48, f"Tokens per second in parentheses; {data['machine']}", "note"),
    ]
    x = width - MARGIN - 330
    for i, name in enumerate(engines[:-1]):
        parts.append(f'<rect class="bar{i}" x="{x}" y="19" width="11" height="11"/>')
        parts.append(text(x + 16, 28, name))
        x += 40 + 7 * len(name)
    parts.append(f'<line class="base" x1="{x + 5}" x2="{x + 5}" y1="18" y2="31"/>')
    parts.append(text(x + 16, 28, f"{engines[-1]} (1×)"))
    return "\n".join([*parts, *body, "</svg>", ""])


def main() -> None:
    data, output = map(Path, sys.argv[1:3] or (IMAGES / "peers.json", IMAGES / "peers.svg"))
    output.write_text(draw(json.loads(data.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
