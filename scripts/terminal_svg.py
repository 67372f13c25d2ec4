#!/usr/bin/env python3
"""Run commands and draw their output as a picture of a terminal.

    terminal_svg.py OUT.svg 'COMMAND ARGUMENTS…' ['COMMAND ARGUMENTS…' …]

Standard output is drawn first and standard error, dimmed, below it. Commands are split like a shell
splits words, but run without a shell. docs/images/run.svg is made with the release binary on PATH:

    terminal_svg.py docs/images/run.svg 'oxidize run SmolLM2-135M-Instruct.Q4_1
        "Explain in one sentence what a compiler does." --temp 0'

Needs only Python.
"""

import argparse
import shlex
import subprocess
import textwrap
from html import escape
from pathlib import Path

COLUMNS = 98
CHARACTER_WIDTH, LINE_HEIGHT, PADDING, TITLE_BAR = 8.5, 21, 18, 34

STYLE = """\
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
       fill: #d8dee9; white-space: pre; }
.prompt { fill: #7bd88f; }
.command { fill: #ffffff; font-weight: bold; }
.error { fill: #8b95a7; }"""

# Lines of text with the class that styles them.
Line = tuple[str, str]


def wrapped(text: str, style: str) -> list[Line]:
    """The lines of a text, each at most COLUMNS wide."""
    lines: list[Line] = []
    for line in text.rstrip("\n").split("\n"):
        parts = textwrap.wrap(line, COLUMNS, drop_whitespace=True, replace_whitespace=False)
        lines.extend((part, style) for part in parts or [""])
    return lines


def command_lines(words: list[str]) -> list[Line]:
    """A command after a prompt, continued with a backslash where it is too long for a line."""
    rows = ["$"]
    for i, word in enumerate(map(quoted, words)):
        end = 0 if i + 1 == len(words) else len(" \\")
        if len(rows[-1]) + 1 + len(word) + end > COLUMNS:
            rows[-1] += " \\"
            rows.append("   ")
        rows[-1] += " " + word
    return [(row, "command") for row in rows]


def quoted(word: str) -> str:
    """A word as a person would type it: in double quotes where those do."""
    if shlex.quote(word) == word:
        return word
    return f'"{word}"' if not set(word) & set('"$`\\!') else f"'{word}'"


def transcript(commands: list[str]) -> list[Line]:
    """The commands and what they print."""
    lines: list[Line] = []
    for command in commands:
        words = shlex.split(command)
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
        if lines:
            lines.append(("", "output"))
        lines += command_lines(words)
        lines += wrapped(done.stdout, "output") if done.stdout else []
        lines += wrapped(done.stderr, "error") if done.stderr else []
    return lines


def draw(lines: list[Line]) -> str:
    """An SVG of a terminal that shows the lines."""
    width = COLUMNS * CHARACTER_WIDTH + 2 * PADDING
    height = TITLE_BAR + len(lines) * LINE_HEIGHT + PADDING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="9" '
        'fill="#1e222a" stroke="#4b5363"/>',
    ]
    for i, color in enumerate(["#ff5f57", "#febc2e", "#28c840"]):
        parts.append(f'<circle cx="{20 + 20 * i}" cy="18" r="6" fill="{color}"/>')
    for i, (text, style) in enumerate(lines):
        y = TITLE_BAR + (i + 1) * LINE_HEIGHT - 6
        x = PADDING + (len(text) - len(text.lstrip())) * CHARACTER_WIDTH
        content = escape(text.lstrip(), quote=False)
        if style == "command" and text.startswith("$ "):
            content = f'<tspan class="prompt">$ </tspan>{content[2:]}'
        if text:
            parts.append(f'<text x="{x:.1f}" y="{y}" class="{style}">{content}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, metavar="OUT.svg")
    parser.add_argument("commands", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    options.output.write_text(draw(transcript(options.commands)))


if __name__ == "__main__":
    main()
