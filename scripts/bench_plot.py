"""Bar chart of the speeds that bench_peers.py measured, as SVG."""

from html import escape

COLORS = ["#d9480f", "#868e96", "#4dabf7", "#69db7c", "#b197fc"]
LABEL_WIDTH, BAR_WIDTH, BAR_HEIGHT, GAP, TOP = 250, 430, 13, 14, 56


def draw(
    rows: list, engines: list[str], tests: list[tuple[str, str]], threads: int, bandwidth: float
) -> str:
    """Draws a group of bars per file and test, scaled to its fastest engine. A line marks the limit that memory
    bandwidth sets to generation."""
    groups = []
    for row in rows:
        for test, title in tests:
            speeds = [
                (name, getattr(row.engines[name], test))
                for name in engines
                if name in row.engines and getattr(row.engines[name], test) > 0
            ]
            if speeds:
                limit = bandwidth * 1e9 / row.bytes_per_token if test == "generate" else None
                groups.append((f"{row.file.stem}, {title}", speeds, limit))
    heights = [len(speeds) * BAR_HEIGHT + GAP for _, speeds, _ in groups]
    width, height = LABEL_WIDTH + BAR_WIDTH + 120, TOP + sum(heights)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold">Tokens per second, {threads} threads; '
        f"the line is the limit of {bandwidth:.1f} GB/s memory bandwidth</text>",
    ]
    x = 8
    for name, color in zip(engines, COLORS):
        parts.append(f'<rect x="{x}" y="31" width="11" height="11" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="41">{escape(name)}</text>')
        x += 36 + 8 * len(name)
    y = TOP
    for (label, speeds, limit), group_height in zip(groups, heights):
        scale = BAR_WIDTH / max([speed for _, speed in speeds] + [limit or 0.0])
        bars = len(speeds) * BAR_HEIGHT
        middle = y + bars / 2 + 4
        parts.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>'
        )
        for index, (name, speed) in enumerate(speeds):
            at, color = y + index * BAR_HEIGHT, COLORS[engines.index(name) % len(COLORS)]
            length = speed * scale
            parts.append(
                f'<rect x="{LABEL_WIDTH}" y="{at}" width="{length:.1f}" '
                f'height="{BAR_HEIGHT - 1}" fill="{color}"/>'
            )
            parts.append(
                f'<text x="{LABEL_WIDTH + length + 6:.1f}" y="{at + 10}" font-size="10">'
                f"{speed:.1f}</text>"
            )
        if limit:
            x = LABEL_WIDTH + limit * scale
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + bars + 1}" stroke="#212529"/>'
            )
        y += group_height
    return "\n".join([*parts, "</svg>", ""])
