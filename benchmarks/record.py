"""The README's moving pictures, recorded from what really runs.

    python -m benchmarks.record terminal --out docs/img/terminal.svg -- bash examples/run_overall.sh
    python -m benchmarks.record page --out docs/img/page.gif experiments/pocket/overall

`terminal` runs a command, notes when each line came, and draws them as an SVG that moves by itself: time is shortened
to `--seconds`, nothing is left out but what `--skip` matches. `page` serves an experiment, opens its views in Chromium
one after the other and makes a GIF of them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

COLUMNS, ROWS = 100, 26
CHARACTER, LINE, MARGIN = 8.0, 18, 16
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# A run's end stays to be read.
LAST_S = 4.0
HEADLESS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1")
VIEWS = ("#/curves", "#/trajectories", "#/tasks", "#/experience")


def recorded(command: Sequence[str], skip: re.Pattern[str] | None) -> list[tuple[float, str]]:
    """The lines that a command writes, each with its second, cut at `COLUMNS`.

    Raises:
        CalledProcessError: the command failed.
    """
    lines: list[tuple[float, str]] = []
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            text = COLOUR.sub("", line.rstrip("\n"))
            if skip is None or not skip.search(text):
                lines.append((time.monotonic() - began, text[:COLUMNS]))
            print(text, flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return lines


def shortened(times: Sequence[float], seconds: float) -> list[float]:
    """Times in 0..seconds: pauses count by their square root, so that a long one is still seen and does not bore."""
    gaps = [max(0.0, now - before) ** 0.5 + 0.05 for before, now in zip((0.0, *times), times, strict=False)]
    whole, passed, found = sum(gaps), 0.0, []
    for gap in gaps:
        passed += gap
        found.append(passed / whole * seconds)
    return found


def drawn(command: str, lines: Sequence[tuple[float, str]], seconds: float) -> str:
    """An SVG in which the lines appear one after the other and scroll, over and over."""
    shown = [(0.0, f"$ {command}"), *zip(shortened([t for t, _ in lines], seconds), [x for _, x in lines], strict=True)]
    whole = seconds + LAST_S
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    scroll = ["0% { transform: translateY(0) }"]
    for row, (second, _) in enumerate(shown):
        if row >= ROWS:
            scroll.append(f"{second / whole:.2%} {{ transform: translateY(-{(row - ROWS + 1) * LINE}px) }}")
    scroll.append(f"100% {{ transform: translateY(-{max(0, len(shown) - ROWS) * LINE}px) }}")
    style = [
        "svg { background: #101418; border-radius: 8px }",
        "text { font: 13px ui-monospace, monospace; fill: #d5dde5; white-space: pre }",
        "text.asked { fill: #8fd18a }",
        f"g.page {{ animation: scroll {whole:.1f}s steps(1, end) infinite }}",
        f"@keyframes scroll {{ {' '.join(scroll)} }}",
    ]
    rows = []
    for row, (second, text) in enumerate(shown):
        name = f"l{row}"
        before, after = f"{second / whole:.2%}", f"{second / whole + 1e-4:.2%}"
        style.append(f"@keyframes {name} {{ 0%, {before} {{ opacity: 0 }} {after}, 100% {{ opacity: 1 }} }}")
        kind = ' class="asked"' if row == 0 else ""
        moves = f"animation: {name} {whole:.1f}s steps(1, end) infinite"
        y = MARGIN + row * LINE + 13
        rows.append(f'<text{kind} x="{MARGIN}" y="{y}" style="{moves}">{escape(text)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        'role="img" '
        f'aria-label="The terminal while {escape(command, quote=True)} runs">'
        f"<style>{' '.join(style)}</style>"
        f'<clipPath id="screen"><rect y="{MARGIN - 4}" width="{width:.0f}" height="{ROWS * LINE + 8}"/></clipPath>'
        f'<g clip-path="url(#screen)"><g class="page">{"".join(rows)}</g></g></svg>\n'
    )


def page(folder: Path, out: Path, browser: str, size: tuple[int, int], views: Sequence[str]) -> None:
    """Write a GIF of an experiment's page, two and a half seconds a view.

    Raises:
        RuntimeError: the page does not come up.
    """
    server = subprocess.Popen(
        [sys.executable, "-m", "agentevolver.view", str(folder), "--port", "8655"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        address = next((found[0] for line in server.stdout or () if (found := re.search(r"http://\S+", line))), None)
        if address is None:
            raise RuntimeError(f"python -m agentevolver.view {folder} ended without an address")
        frames = []
        with tempfile.TemporaryDirectory() as place:
            for index, view in enumerate(views):
                shot = Path(place) / f"{index}.png"
                options = [f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=8000", f"--screenshot={shot}"]
                subprocess.run(
                    [browser, *HEADLESS, *options, f"{address.rstrip('/')}/{view}"],
                    check=True,
                    capture_output=True,
                    timeout=120,
                )
                frames.append(Image.open(shot).convert("RGB").quantize(96, dither=Image.Dither.NONE))
        frames[0].save(out, save_all=True, append_images=frames[1:], duration=2500, loop=0, optimize=True)
    finally:
        server.terminate()
        server.wait(30)


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description="Record a terminal or the page of a run.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    terminal = kinds.add_parser("terminal", help="a command's output as an SVG")
    terminal.add_argument("--out", type=Path, required=True)
    terminal.add_argument("--seconds", type=float, default=24.0, help="what the command's time is shortened to")
    terminal.add_argument("--skip", type=re.compile, help="lines that are left out")
    terminal.add_argument("command", nargs="+")
    views = kinds.add_parser("page", help="the views of an experiment as a GIF")
    views.add_argument("--out", type=Path, required=True)
    views.add_argument("--browser", default="chromium")
    views.add_argument("--size", default="1200x800")
    views.add_argument("--view", action="append", help=f"again and again; without it {', '.join(VIEWS)}")
    views.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.kind == "terminal":
        lines = recorded(options.command, options.skip)
        options.out.write_text(drawn(" ".join(options.command), lines, options.seconds), encoding="utf-8")
    else:
        width, height = map(int, options.size.split("x"))
        page(options.folder, options.out, options.browser, (width, height), options.view or VIEWS)


if __name__ == "__main__":
    main()
