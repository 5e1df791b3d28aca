"""`agentevolver chat`: shows a policy in its environment, step by step, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.panel import Panel

from agentevolver.cli.commands.players import add_player, contestant, game, refuse_unclear
from agentevolver.cli.commands.verbs import VerbParser, carried_out
from agentevolver.utils.errors import UsageError
from agentevolver.utils.rich_console import TerminalConsole, escape
from agentevolver.utils.secrets import read_dotenv

if TYPE_CHECKING:
    from agentevolver.evaluation.contestants import EvaluatedGame
    from agentevolver.evaluation.export.source import Source

HELP = "enter: accept the reply; a text: act in its place; q: quit"
QUIT = ("q", "quit", "exit")


def parser() -> VerbParser:
    made = VerbParser(
        "chat",
        "Shows a policy in its environment step by step: the opening, its reply, the answer. At each step, "
        f"{HELP}. Without a terminal the same is read as lines.",
    )
    add_player(made)
    add = made.add_argument
    add("--split", help="of the environment (default: the first of data.val_splits)")
    add("--task", metavar="ID", help="play this task (default: one after the other)")
    add("--auto", action="store_true", help="ask nothing, and play one episode")
    return made


def main(arguments: Sequence[str], root: Path) -> int:
    return carried_out("chat", lambda: _chat(parser().read(arguments), root))


def _chat(options: argparse.Namespace, root: Path) -> int:
    read_dotenv(root)
    refuse_unclear(options)
    if not options.what and not options.api:
        raise UsageError("name a RUN, a CHECKPOINT or a folder of weights, or give --api URL --model NAME (see --help)")
    source, played = game(options)
    asyncio.run(_play(options, source, played))
    return 0


async def _play(options: argparse.Namespace, source: Source | None, played: EvaluatedGame) -> None:
    from agentevolver.evaluation.chat import Quit, WatchedWorld, watched
    from agentevolver.evaluation.play import list_tasks
    from agentevolver.evaluation.worlds import open_world
    from agentevolver.trainer.monitor.measured import Measured
    from agentevolver.utils import seeds

    settings = played.settings
    env_type = settings.env_service.env_types[0]
    split = options.split or (settings.environment(env_type).val_splits or ("dev",))[0]
    seed = settings.data.seed if options.seed is None else options.seed
    screen, measured = Terminal(auto=options.auto), Measured()
    async with open_world(settings.env_service.env_types, options.env_modules, options.env_url) as world:
        tasks = await list_tasks(world, settings, env_type, split)
        if options.task is not None:
            tasks = [task for task in tasks if task.task_id == options.task]
            if not tasks:
                raise UsageError(f"--task {options.task}: there is no such task in the split {split} of {env_type}")
        screen.say("starting the policy" if source is not None else f"asking {options.model} at {options.api}")
        async with contestant(options, source, played, watched(screen)) as player:
            runner = player.runner(WatchedWorld(world, screen))
            params = settings.environment(env_type).params(validation=True)
            try:
                for number, task in enumerate(tasks):
                    screen.task(player.name, task.task_id, f"{env_type}/{split}")
                    with seeds.drawing(seed, "chat", task.task_id, number):
                        rollout = await runner.run(task, task.task_id, number, dict(player.sampling), params)
                    own = Measured.of([rollout.trajectory])
                    measured += own
                    screen.end(rollout.trajectory, own.problem())
                    if options.auto or number + 1 == len(tasks):
                        break
                    screen.next_task()
            except Quit:
                screen.say("left")
    measured.check()


class Terminal:
    """Screen of a chat in a terminal, or as plain lines in a pipe. With `auto` the user is never asked."""

    def __init__(self, *, auto: bool = False, console: TerminalConsole | None = None) -> None:
        # In a pipe lines are not wrapped, so that other programs can read them.
        self._console = console or TerminalConsole(soft_wrap=not sys.stdout.isatty())
        self._auto = auto
        self._told = False
        self._step = 0

    def say(self, text: str) -> None:
        self._console.print(escape(text), style="dim", highlight=False)

    def task(self, who: str, task_id: str, where: str) -> None:
        self._step = 0
        self._console.rule(f"{escape(who)}: {escape(task_id)} of {escape(where)}")

    def opening(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self._message(str(message.get("role", "")), _text(message), "blue")

    def reply(self, text: str) -> None:
        self._step += 1
        self._message(f"policy, step {self._step}", text or "(nothing)", "green")

    def choice(self) -> str | None:
        typed = self._ask("" if self._told else f"[{HELP}] ")
        self._told = True
        return typed or None

    def observation(self, messages: list[dict[str, Any]], reward: float, over: bool) -> None:
        for message in messages:
            self._message("environment", _text(message), "cyan")
        if over:
            self.say(f"the environment ends the episode, reward {reward:g}")

    def end(self, trajectory: Any, problem: str | None = None) -> None:
        """Show the outcome, or why the episode measured nothing."""
        outcome = trajectory.outcome
        how = f"{trajectory.stop_reason.value} after {len(trajectory.steps)} steps"
        if outcome is None or problem is not None:
            self._console.print(f"[red]{escape(how)}: {escape(problem or trajectory.error)}[/]", highlight=False)
            return
        colour = "green" if outcome.success else "yellow"
        verdict = "solved" if outcome.success else "not solved"
        self._console.print(f"[{colour}]{verdict}, score {outcome.score:g}[/] ({how})", highlight=False)

    def next_task(self) -> None:
        """Ask whether to play the next task. Raises Quit."""
        self._ask("[enter: the next task; q: quit] ")

    def _ask(self, prompt: str) -> str:
        from agentevolver.evaluation.chat import Quit

        if self._auto:
            return ""
        # asyncio.run's handler (Python 3.11) only notes the first Ctrl-C, and `input` would go on waiting for a line.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            typed = input(f"{prompt}> ").strip()
        except (EOFError, KeyboardInterrupt) as error:
            print()
            raise Quit from error
        finally:
            signal.signal(signal.SIGINT, before)
        if typed.lower() in QUIT:
            raise Quit
        return typed

    def _message(self, who: str, text: str, colour: str) -> None:
        if self._console.is_terminal:
            self._console.print(Panel(escape(text), title=escape(who), title_align="left", border_style=colour))
        else:
            self._console.print(f"{escape(who)}: {escape(text)}", highlight=False)


def _text(message: dict[str, Any]) -> str:
    from context_manager.messages import text_of

    return text_of(message)
