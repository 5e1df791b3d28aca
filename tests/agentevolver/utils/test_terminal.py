"""Control characters of worlds, models and files are shown on a terminal and never obeyed."""

import io
import re
import subprocess
import sys
import unicodedata

import pytest
from rich.panel import Panel
from rich.table import Table

from agentevolver.cli.commands.chat import Terminal
from agentevolver.evaluation.report import Evaluation
from agentevolver.evaluation.report import table as report
from agentevolver.trainer.monitor.console import line_of, new_lines, validation_lines
from agentevolver.trainer.monitor.results import ValidationResult
from agentevolver.utils.rich_console import TerminalConsole, escape
from agentevolver.utils.terminal import Guarded, shown

HOSTILE = [
    *(
        "\x1b]0;title\x07",
        "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
        "\x1b]52;c;ZXZpbA==\x07",
        "\x1b[2J",
        "\x1b[31m",
    ),
    *("\x1b[6n", "\x1bc", "\x1bP1$r0m\x1b\\", "\x9b2J", "\x9d0;title\x9c", "\x90", "ok\rforged", "\a", "\b\b", "\x7f"),
    *("\x00", "\x0b\x0c", "\u202egnp.exe", "\u2066\u2069", "\u200e\u200f\u061c", "\u2028\u2029", "\ud800", "\x1b" * 50),
    *("[link=http://evil]link[/link]", "[/]", "[red]forged"),
]
OBEYED = {"Cc", "Cs", "Zl", "Zp", "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def obeyed(text):
    """Return the characters of an output that a terminal obeys."""
    kinds = {one: {unicodedata.category(one), unicodedata.bidirectional(one)} for one in set(text) - {"\n", "\t"}}
    return [one for one, own in kinds.items() if own & OBEYED]


def by_print(text, out):
    print("world:", text, file=Guarded(out))


def by_table(text, out):
    table = Table(escape(text), title=escape(text))
    table.add_row(escape(text))
    TerminalConsole(file=out, width=90).print(table, Panel(escape(text), title=escape(text)))


def by_chat(text, out):
    screen = io.StringIO()
    terminal = Terminal(auto=True, console=TerminalConsole(file=screen, width=90, force_terminal=True))
    terminal.task(text, text, text)
    terminal.opening([{"role": text, "content": text}])
    terminal.reply(text)
    terminal.observation([{"role": "tool", "content": text}], 0.0, True)
    terminal.say(text)
    out.write(re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()))  # rich's own colours


def by_monitor(text, out):
    record = {"step": 1, "rollout/success": 0.5, "rollout/reward/mean": 0.5, f"rollout/success/{text}": 0.5}
    found = validation_lines([ValidationResult(0, text, 1, 0.5, None)], {})
    for line in [line_of(record), *map(escape, [*new_lines({}, {"told": text, "stuck": text}), *found])]:
        TerminalConsole(file=out, width=200).print(line)


def by_report(text, out):
    played = {text: [0.5]}, {text: [True]}, {text: [1]}
    TerminalConsole(file=out, width=90).print(report([Evaluation(text, text, text, 1, *played, {})]))


WAYS = [by_print, by_table, by_chat, by_monitor, by_report]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_foreign_controls_are_shown(way, text):
    out = io.StringIO()
    way(f"before {text} after", out)
    assert "before" in out.getvalue() and not obeyed(out.getvalue())


def test_what_is_no_control_stays():
    text = "naïve 漢字 👩‍🚀 [brackets]\n\ttab"
    assert shown(text) == text and shown("one\r\ntwo") == "one\ntwo" and shown("\x1b[1m") == "\\x1b[1m"
    out = io.StringIO()
    console = TerminalConsole(file=Guarded(out), force_terminal=True, color_system="standard")
    console.print("[red]own colour[/]", "[link=http://evil]x[/]")
    assert "\x1b[31mown colour\x1b[0m" in out.getvalue() and "\x1b]8" not in out.getvalue()


def test_a_verb_prints_no_control_of_a_folder_or_an_argument(tmp_path):
    folder = tmp_path / "run\x1b]0;title\x07"
    folder.mkdir()
    for verb in ("eval", "chat", "view", "table", "\x1b[2J"):
        command = [sys.executable, "-m", "agentevolver", verb, str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ran.returncode != 0 and ran.stderr and not obeyed(ran.stdout + ran.stderr), verb
