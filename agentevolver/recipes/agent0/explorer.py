"""Self-questioning as proposer: the task manager explores the world, makes tasks of what it found, verifies them, and
what it keeps is proposed.

Its journal lies in the round's folder, so a round that was killed goes on in it; of earlier rounds' tasks none is made
again. What is proposed is read by the environment `propose`, as every proposal is, measured by the frozen executor and
put through the gate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from agentevolver.config.parts import from_settings
from agentevolver.config.schema import Settings
from agentevolver.llm.client import LLM
from agentevolver.llm.embeddings import EncoderUnavailable
from agentevolver.recipes.agent0.pool import Draw
from agentevolver.recipes.agent0.proposers import read_proposal
from agentevolver.recipes.agent0.types import Proposal
from agentevolver.types import Task
from agentevolver.utils.errors import TrainingFailed
from env_service.client import AsyncEnvClient
from env_service.environments.python_tool.actions import Code, parse
from task_manager.actions import PlainFormat, format_of
from task_manager.journal import JournalError
from task_manager.pipeline import QuestioningFailed
from task_manager.settings import QuestioningConfiguration
from task_manager.synthetic_tasks import open_run
from task_manager.tasks import solution_of

logger = logging.getLogger(__name__)

QUESTIONED, STORE = "questioned.jsonl", "questioning"


class ExplorerProposer:
    """The task manager's pipeline as a `Proposer`: proposal i of a round is the i-th task that it keeps there.

    Args:
        settings: of the run; its section `task_manager` says how tasks are made.
        llm: the roles' models.
        client: of the environment service, which reads what is proposed.
        number: of the round.
    """

    def __init__(self, settings: Settings, llm: LLM, client: AsyncEnvClient, number: int) -> None:
        self._configuration = questioning_of(settings, number)
        self._format = format_of(self._configuration.env_service.env_type, settings.task_manager.action_format)
        self._llm = llm
        self._client = client
        self._number = number
        self._tasks: list[Task] = []
        self._all = False
        self._making = asyncio.Lock()

    async def propose(self, draws: Sequence[Draw]) -> list[Proposal]:
        """Return the tasks of these numbers, which are made now unless they are there; fewer where there are no more
        worlds to explore.

        Raises:
            TrainingFailed: no tasks can be made, or the budget is spent.
            EnvServiceError: the environment service failed.
        """
        wanted = max((draw.number for draw in draws), default=-1) + 1
        async with self._making:
            if len(self._tasks) < wanted and not self._all:
                await self._make(wanted)
        made = [(draw, self._tasks[draw.number]) for draw in draws if draw.number < len(self._tasks)]
        return list(await asyncio.gather(*(self._proposal(draw, task) for draw, task in made)))

    async def _make(self, wanted: int) -> None:
        section = self._configuration.task_manager.model_copy(update={"target_tasks": wanted})
        configuration = self._configuration.model_copy(update={"task_manager": section})
        try:
            async with open_run(configuration, self._llm) as run:
                self._tasks = await run.make_tasks()
                spent = run.pipeline.budget_spent
        except (QuestioningFailed, JournalError, EncoderUnavailable) as error:
            raise TrainingFailed(f"round {self._number}: no tasks could be proposed: {error}") from error
        if len(self._tasks) >= wanted:
            return
        if spent:
            raise TrainingFailed(
                f"round {self._number}: the budget was spent after {len(self._tasks)} of {wanted} proposals: raise "
                "llm.budget, and the same command goes on"
            )
        self._all = True
        logger.warning(
            "round %d: all explorations of task_manager.n = %d brought %d proposals",
            self._number,
            section.n,
            len(self._tasks),
        )

    async def _proposal(self, draw: Draw, task: Task) -> Proposal:
        async def write(opening: str, asked: str) -> str:
            return written(task, self._format)

        return await read_proposal(self._client, draw, write, seed=task.task_id)


def questioning_of(settings: Settings, number: int) -> QuestioningConfiguration:
    """Return what the task manager reads in a round: other explorations than in those before, and their tasks as
    known."""
    made = from_settings(settings, settings.world.env_type)
    folders = [settings.experiment_dir.resolve() / f"round_{one}" for one in range(1, number + 1)]
    changes = {
        "n": max(1, made.task_manager.n),
        "round": number - 1,
        "train_data_path": folders[-1] / QUESTIONED,
        "store": folders[-1] / STORE,
        "known_data_paths": tuple(path for folder in folders[:-1] if (path := folder / QUESTIONED).exists()),
    }
    return made.model_copy(update={"task_manager": made.task_manager.model_copy(update=changes)})


def written(task: Task, fmt: PlainFormat) -> str:
    """Return a synthetic task as a proposer writes one: the question, the code of its reference solution as program
    (a chain of calc is its own), and its answer."""
    solution = solution_of(task)
    answers = [answer for action in solution if (answer := fmt.answer_of(action))]
    found = (
        [parse({"role": "assistant", "content": action}) for action in solution] if task.env_type == "python" else []
    )
    program = "\n".join(one.source.strip("\n") for one in found if isinstance(one, Code))
    return "\n".join(
        [
            f"<question>\n{task.query}\n</question>",
            *([f"<program>\n{program}\n</program>"] if program else []),
            *([f"\\boxed{{{answers[-1]}}}"] if answers else []),
        ]
    )
