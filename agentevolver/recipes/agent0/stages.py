"""The stages of a round. Each records its results one by one, and after a kill makes only the missing ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agentevolver.recipes.agent0 import evaluation
from agentevolver.recipes.agent0.journal import RoundJournal
from agentevolver.recipes.agent0.play import Player, PlayFailed
from agentevolver.recipes.agent0.pool import DUPLICATE, Draw, JudgedProposal, Labeller, TaskPool, canonical
from agentevolver.recipes.agent0.settings import PROPOSE_ENV
from agentevolver.recipes.agent0.trainings import TrainingResult
from agentevolver.recipes.agent0.types import DroppedProposal, ProposedTask
from agentevolver.types import Task
from agentevolver.utils.errors import TrainingFailed

EVALUATION = "evaluation.jsonl"
# Labels or evaluated tasks in flight at once, and draws (one episode each).
AT_ONCE, DRAWS_AT_ONCE = 16, 128
# If the episodes of more than this share of a batch fail, the stage fails and not the proposals.
FAILING = 0.5

T = TypeVar("T")
ReportCount = Callable[[int, int], None]
"""Takes the number of finished items, and of all."""


Seeds = Callable[[int, str, int], Awaitable[list[str]]]
"""Lists ids of the world `propose` by round, purpose (`propose` for training, or `pool`) and count. Equal arguments
give equal ids."""


async def each(items: Sequence[T], work: Callable[[T], Awaitable[None]], at_once: int = AT_ONCE) -> None:
    slots = asyncio.Semaphore(at_once)

    async def one(item: T) -> None:
        async with slots:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(one(item))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def draw(
    pool: TaskPool, draws: Sequence[Draw], player: Player, proposer: str, recorded: str, tell: ReportCount
) -> None:
    """Make the missing proposals of a batch, with one episode of `propose` each; raises PlayFailed.

    `proposer` is the checkpoint for the player, `recorded` its path in the records.
    """

    async def propose(one: Draw) -> None:
        task = Task(one.seed, PROPOSE_ENV, metadata={"split": "train"})
        (play,) = await player.play(proposer, task, 1, f"{one.proposal_id}.draw")
        pool.put_drawn(one, ProposedTask.from_facts(one.proposal_id, one.seed, play.facts), recorded)
        tell(len(pool.drawn), len(draws))

    await each(pool.undrawn(draws), propose, DRAWS_AT_ONCE)


async def label(pool: TaskPool, labeller: Labeller, k: int, executor: str, tell: ReportCount) -> None:
    """Label the drawn proposals: refused ones and duplicates are dropped, the labeller judges the others.

    Raises TrainingFailed if the episodes of more than half of the proposals could not be played.
    """
    repeats, missing, failed = pool.repeats(), pool.unlabelled(), []

    async def judge(proposal: ProposedTask) -> None:
        if proposal.refused:
            word, _, sentence = proposal.refused.partition(":")
            judged = JudgedProposal(DroppedProposal(word.strip(), sentence.strip()))
        elif (of := repeats.get(proposal.proposal_id)) is not None:
            judged = JudgedProposal(DroppedProposal(DUPLICATE, f"of {of}"))
        else:
            try:
                judged = await labeller.label(proposal, f"{proposal.proposal_id}.label")
            except PlayFailed as error:
                failed.append(str(error))
                if len(failed) > FAILING * max(len(missing), 2):
                    raise TrainingFailed(
                        f"round {pool.number}: the episodes of {len(failed)} of {len(missing)} proposals could not be "
                        f"played: {error}"
                    ) from error
                judged = JudgedProposal(DroppedProposal("unmeasured", str(error)))
        pool.put_labelled(proposal, judged, k, executor)
        tell(len(pool.labelled), len(pool.drawn))

    await each(missing, judge)


def pool_counts(pool: TaskPool) -> dict[str, Any]:
    records = list(pool.labelled)
    return {
        "drawn": len(pool.drawn),
        "refused": sum(bool(record["refused"]) for record in pool.drawn),
        "measured": sum(record["k"] > 0 for record in records),
        "episodes": sum(record["k"] for record in records),
        "kept": len(pool.kept()),
        "dropped": pool.dropped(),
    }


def pool_metrics(pool: TaskPool) -> dict[str, float]:
    kept, measured = pool.kept(), [record for record in pool.labelled if record["k"] > 0]
    found = {
        "kept": float(len(kept)),
        "kept_share": len(kept) / max(1, len(pool.labelled)),
        "refused_share": sum(bool(record["refused"]) for record in pool.drawn) / max(1, len(pool.drawn)),
    }
    for name, records, key in (
        ("label_right", kept, "right"),
        ("vote_right", kept, "vote_right"),
        ("measured/vote_right", measured, "vote_right"),
        ("p", kept, "p_hat"),
        ("measured/p", measured, "p_hat"),
        ("calls", kept, "mean_tool_calls"),
        ("measured/calls", measured, "mean_tool_calls"),
    ):
        if values := [float(record[key]) for record in records if record[key] is not None]:
            found[name] = sum(values) / len(values)
    return found


async def evaluate(
    folder: Path, tasks: Sequence[Task], player: Player, checkpoint: str, n: int, tell: ReportCount
) -> dict[str, Any]:
    """Play the missing tasks of the evaluation, and return the summary by split.

    A task's episodes have the same seeds in all rounds, so two rounds differ by the policy alone.
    """
    done = RoundJournal(folder / EVALUATION, "key")
    missing = [task for task in tasks if evaluation.key_of(task) not in done]

    async def play(task: Task) -> None:
        name = f"evaluate.{task.env_type}.{task.task_id}"
        plays = await player.play(checkpoint, task, n, name, validation=True)
        done.add(evaluation.record_of(task, plays))
        tell(len(done), len(tasks))

    await each(missing, play)
    return evaluation.summarised(done)


def training_metrics(trained: TrainingResult) -> dict[str, float]:
    found: dict[str, float] = {"steps": float(len(trained.steps))}
    for name in ("rollout/reward/mean", "rollout/success", "reward/score/mean"):
        values = [float(step[name]) for step in trained.steps if name in step]
        if values:
            found[f"{name}/first"], found[f"{name}/last"] = values[0], values[-1]
    for name in ("timing_s/step", "actor/kl_loss", "actor/grad_norm", "actor/clip_hi", "adpo/scale/mean"):
        values = [float(step[name]) for step in trained.steps if name in step]
        if values:
            found[name] = sum(values) / len(values)
    return found


def known_questions(evaluated: Iterable[str], earlier: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Map the canonical questions that may not be proposed again to their sources."""
    known = {canonical(record["question"]): record["task_id"] for tasks in earlier for record in tasks}
    return known | {canonical(question): "the evaluation" for question in evaluated}
