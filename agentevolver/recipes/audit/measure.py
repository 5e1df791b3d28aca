"""Measures each role: asks it with a training's own prompts and compares its answers with the world's truth."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from advantage_processor import AttributionSettings
from advantage_processor.attributor import Attributor, judge_settings
from agentevolver.llm import LLM, LLMError, Role
from agentevolver.recipes.audit.findings import DISTILLER, EXPLORER, Agreement, RoleFinding, judged, labelled
from agentevolver.recipes.audit.rollouts import Recorded
from env_service.protocol import EnvServiceError, Instances
from experience_manager.attempts import read_attempts
from experience_manager.distill import Distiller
from experience_manager.settings import DistillationSettings
from task_manager.actions import format_of
from task_manager.explore import Explorer, make_strategy
from task_manager.graders.base import GradingError
from task_manager.graders.judge import KINDS, JudgeGrader
from task_manager.profile import profile_for
from task_manager.settings import QuestioningConfiguration
from task_manager.synthesize import Synthesiser
from task_manager.verify import Verifier
from task_manager.world import SeedWorld

# The judge of tasks without a machine check, if the configured grader asks none.
JUDGE_OF_TASKS = "llm-binary-gt-no_constraint"
SHOWN = 8


async def judge(llm: LLM, client: Instances, chosen: Sequence[Recorded], grader: str) -> RoleFinding:
    """Let the judge grade rollouts whose verdict is known."""
    found, asked = Agreement(), JudgeGrader(grader if grader in KINDS else JUDGE_OF_TASKS, llm)

    async def one(recorded: Recorded) -> None:
        try:
            outcome = await asked.grade(recorded.rollout.task, recorded.rollout, client, "")
        except GradingError as error:
            found.lose(_kind(error.__cause__ or error))
            return
        found.add(outcome.success, recorded.success)

    await asyncio.gather(*map(one, chosen))
    made = judged(found)
    return replace(made, lines=[f"grader {asked.name}", *made.lines])


async def label(configuration: QuestioningConfiguration, groups: Sequence[Recorded], count: int) -> RoleFinding:
    """Let the labeller label whole rollouts, the first ones that together have at least `count` steps."""
    section, found, steps = AttributionSettings(enable=True), Agreement(), 0
    settings = judge_settings(configuration.llm, section)
    chosen = []
    for recorded in groups:
        if steps < count:
            chosen.append(recorded)
            steps += len(recorded.good)
    endpoint = settings.endpoint(Role.ATTRIBUTOR)
    # A label waits for its turn here, where the labeller's time is not running.
    slots = asyncio.Semaphore(endpoint.concurrency)
    async with LLM(settings) as llm:
        labeller = Attributor(section, llm, group_size=1, endpoint=endpoint)

        async def one(recorded: Recorded) -> None:
            async with slots:
                said = await labeller.label_steps(recorded.rollout, step=1)
            if not said.good:
                found.lose(said.reason)
            for is_good, truth in zip(said.good, recorded.good, strict=False):
                found.add(is_good, truth)

        await asyncio.gather(*map(one, chosen))
    return labelled(found)


async def explore(
    llm: LLM, client: Instances, configuration: QuestioningConfiguration, seeds: Sequence[str]
) -> RoleFinding:
    """Explore worlds, propose tasks and execute their solutions. Report the number of kept tasks and why others were
    dropped."""
    section, service = configuration.task_manager, configuration.env_service
    fmt, profile = (
        format_of(service.env_type, section.action_format),
        profile_for(service.env_type, section.env_profile),
    )
    strategy = make_strategy(section.strategy, fmt, section.strategy_args)
    explorer = Explorer(client, llm, fmt, profile, strategy, section.strategy_args, reply_format=section.reply_format)
    synthesiser = Synthesiser(llm, fmt, profile, section.synthesis)
    executed = section.verification.model_copy(update={"judge": False, "resolve": False})
    verifier = Verifier(client, llm, fmt, executed)
    counts: Counter[str] = Counter()
    kept: list[str] = []

    async def one(seed: str) -> None:
        world = SeedWorld(service.env_type, seed, service.env_params)
        try:
            exploration = await explorer.explore(world, 0)
            counts["explorations"] += 1
            counts["steps"] += len(exploration.steps)
            counts["steps refused"] += sum(step.refused for step in exploration.steps)
            counts["different actions"] += len({step.action for step in exploration.steps})
            made = await synthesiser.propose(exploration, kept)
        except (LLMError, EnvServiceError) as error:
            counts[f"lost: {_kind(error)}"] += 1
            return
        counts["proposed"] += len(made.proposals) + len(made.rejected)
        counts["dropped: no task"] += len(made.rejected)
        for proposal in made.proposals:
            verdict = await verifier.verify(world, proposal, exploration.opening)
            if verdict.passed:
                kept.append(f"{proposal.query}  <- {' | '.join(proposal.solution)}")
            else:
                counts[f"dropped: {_reason(verdict.reason)}"] += 1

    await asyncio.gather(*map(one, seeds))
    if not counts["explorations"]:
        return RoleFinding(EXPLORER, missing=f"no exploration came to its end: {dict(counts)}")
    lines = [
        f"{len(kept)} of {counts['proposed']} proposed tasks can be carried out, from {counts['explorations']} "
        f"explorations of {counts['steps']} steps ({counts['steps refused']} refused, "
        f"{counts['different actions']} different)",
        *(
            f"{count} {name}"
            for name, count in sorted(counts.items())
            if count and name.startswith(("dropped", "lost"))
        ),
        *(f"kept: {query}" for query in kept[:SHOWN]),
    ]
    return RoleFinding(EXPLORER, lines, "" if kept else lines[0])


async def distil(llm: LLM, groups: Sequence[Sequence[Recorded]], count: int) -> RoleFinding:
    """Distil pairs of a success and a failure of one task."""
    pairs = []
    for group in groups:
        success, failure = ([one for one in group if one.success is wanted] for wanted in (True, False))
        if success and failure:
            pairs.append([success[0].rollout, failure[-1].rollout])
    distiller = Distiller(llm, DistillationSettings())
    done = await asyncio.gather(*(distiller.distil(read_attempts(pair), 1) for pair in islice(pairs, count)))
    counts: Counter[str] = sum((one.counts for one in done), Counter())
    calls = counts["failed_extraction"] + counts["failed_validation"]
    made = [experience for one in done for experience in one.experiences]
    drawn = sum(counts[name] for name in ("extracted_success", "extracted_failure", "extracted_comparative"))
    if not drawn:
        problem = next((one.problem for one in done if one.problem), "the replies hold no experience")
        return RoleFinding(DISTILLER, missing=f"no experience was written in {calls} calls: {problem}")
    lines = [
        f"{len(made)} of {drawn} experiences kept, from {len(done)} pairs ({counts['screened']} screened out, "
        f"{counts['invalid']} found invalid by the distiller itself, {calls} lost calls)",
        "their paired lift is not measured: no policy is at hand here. Measure it in training "
        "(exp_manager.train_rollout_mode: mixed), which prunes those that harm",
        *(f"kept: {one.when_to_use}: {one.content}" for one in made[:SHOWN]),
    ]
    return RoleFinding(DISTILLER, lines)


def _reason(text: str) -> str:
    return "an action was refused" if " was refused: " in text else text.split(",")[0]


def _kind(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
