"""`python -m agentevolver.recipes.audit --conf FILE [--out FILE] [key=value ...]`: each role beside the world's truth.

Exit codes: 0 each role was measured, 1 one was not, 2 wrong configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from agentevolver.config.checks import load
from agentevolver.config.manager_settings import from_settings
from agentevolver.evaluation.worlds import open_world
from agentevolver.llm import LLM, LLMError
from agentevolver.recipes.audit import measure
from agentevolver.recipes.audit.findings import DISTILLER, EXPLORER, JUDGE, LABELLER, ROLES, RoleFinding, shown
from agentevolver.recipes.audit.rollouts import half_and_half, recorded
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.files import write_text
from agentevolver.utils.terminal import guard_output
from env_service.protocol import EnvServiceError
from task_manager.profile import ProfileError
from task_manager.settings import QuestioningConfiguration


def main(arguments: Sequence[str] | None = None) -> int:
    guard_output()
    options = _parser().parse_intermixed_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        if unknown := set(options.roles) - set(ROLES):
            raise ConfigError(f"--roles {min(unknown)}: a role to audit is one of {', '.join(ROLES)}")
        configuration = from_settings(load(options.conf, options.overrides).settings)
        findings = asyncio.run(audit(configuration, options))
    except (ConfigError, ProfileError) as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    except (EnvServiceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.out is not None:
        roles = {one.role: asdict(one) for one in findings if not one.missing}
        write_text(options.out, json.dumps({"model": configuration.llm.model, "roles": roles}, indent=1))
    return int(any(one.missing for one in findings))


async def audit(configuration: QuestioningConfiguration, options: argparse.Namespace) -> list[RoleFinding]:
    """Measure the roles one after another, and print each as soon as it is measured."""
    service, findings = configuration.env_service, []
    async with open_world([service.env_type]) as client, LLM(configuration.llm) as llm:
        split = next(iter(configuration.data.val_splits), "dev")
        groups = await recorded(client, service.env_type, split, dict(service.env_params), options.seed)
        chosen = half_and_half(groups, options.verdicts, options.seed)
        seeds = await client.get_env_profile(service.env_type, configuration.data.train_split)
        grader = configuration.task_manager.grader.fallback_grader
        roles: dict[str, Callable[[], Awaitable[RoleFinding]]] = {
            JUDGE: lambda: measure.judge(llm, client, chosen, grader),
            LABELLER: lambda: measure.label(configuration, chosen, options.labels),
            EXPLORER: lambda: measure.explore(llm, client, configuration, seeds[: options.explorations]),
            DISTILLER: lambda: measure.distil(llm, groups, options.pairs),
        }
        for role in options.roles:
            began = time.perf_counter()
            try:
                found = await roles[role]()
            except LLMError as error:
                found = RoleFinding(role, missing=str(error))
            found.seconds = round(time.perf_counter() - began, 1)
            findings.append(found)
            print(told(found), flush=True)
    return findings


def told(found: RoleFinding) -> str:
    if found.missing:
        return f"{found.role}: NOT MEASURED: {found.missing} ({found.seconds:.0f} s)"
    verdict = f"OFF, {shown(found.role)}" if found.off else "on"
    return "\n  ".join([f"{found.role}: {verdict} ({found.seconds:.0f} s)", *found.lines])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.recipes.audit",
        description="How far the roles of language models agree with the world.",
    )
    parser.add_argument("--conf", type=Path, help="an experiment's yaml, as the launcher takes it")
    parser.add_argument("--roles", type=lambda text: text.split(","), default=list(ROLES), help=",".join(ROLES))
    sizes = {
        "verdicts": (200, "rollouts that the judge grades"),
        "labels": (200, "steps of these that the labeller labels, about"),
        "explorations": (20, "worlds that the explorer sees"),
        "pairs": (20, "pairs of a success and a failure to distil"),
    }
    for name, (count, text) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the mistakes and the choice of rollouts")
    parser.add_argument("--out", type=Path, help="file of the result, for recipes.audit.result of a training")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys that differ")
    return parser


if __name__ == "__main__":
    sys.exit(main())
