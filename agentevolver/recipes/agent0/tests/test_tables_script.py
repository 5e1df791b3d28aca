"""The script that makes the tables of the results: every launch of it can be planned, at equal rollouts."""

import subprocess
from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.launcher.options import parse
from agentevolver.recipes.agent0.settings import settings_of

ROOT = Path(__file__).parents[4]
SCRIPT = Path("agentevolver/recipes/agent0/examples/agent0_tables.sh")


def checkout(folder: Path) -> Path:
    """Return the script in a folder whose Python only writes down how it was called."""
    script, program = folder / SCRIPT, folder / ".venv" / "bin" / "python"
    for path in (script, program):
        path.parent.mkdir(parents=True)
    (folder / "install.sh").touch()
    script.write_text((ROOT / SCRIPT).read_text())
    program.write_text(CALLS_ONLY)
    program.chmod(0o755)
    return script


CALLS_ONLY = """#!/usr/bin/env bash
call=$(IFS=$'\\x1f'; echo "$*")
echo "$call" >> calls
name=$(sed -n 's/.*trainer.experiment_name=\\([^\\x1f]*\\).*/\\1/p' <<< "$call")
mkdir -p "experiments/agent0/$name"
"""


def launches_of_tables(script: Path, *arguments: str, **variables: str) -> dict[str, list[str]]:
    """Run the script with nothing behind it; returns the arguments of each launch by the run's name."""
    calls = script.parents[4] / "calls"
    calls.unlink(missing_ok=True)
    subprocess.run(["bash", str(script), *arguments], env={"PATH": "/usr/bin:/bin", **variables}, check=True)
    made = [line.split("\x1f") for line in calls.read_text().splitlines()]
    assert made[-1][:2] == ["-m", "benchmarks.agent0_tables"]
    launched = [call[1:] for call in made if call[0] == "launcher.py"]
    return {next(word.partition("=")[2] for word in call if "experiment_name=" in word): call for call in launched}


def rollouts_of(arguments: list[str]) -> int:
    """Return the most episodes of the executor by which a round's proposals are rewarded and labelled."""
    options = parse(arguments)
    assert options.conf is not None
    rounds = settings_of(load(ROOT / options.conf, ["device=cpu", *options.overrides]).settings)
    assert rounds.enable and rounds.pool >= rounds.draws, "a full pool would cut what a condition may draw"
    proposer = rounds.proposer
    rewarded = proposer.steps * proposer.batch_size * proposer.n * rounds.executor.k if proposer.trained else 0
    return rewarded + rounds.draws * rounds.executor.label_k


@pytest.mark.thorough
def test_every_launch_of_the_tables_of_agent0_can_be_planned(tmp_path: Path) -> None:
    script = checkout(tmp_path)
    most = {name: rollouts_of(arguments) for name, arguments in launches_of_tables(script).items()}
    assert len(most) == 3 * 3 + 5
    assert most["frozen-1"] == most["executed-1"] == most["narrow-1"] == most["narrow_frozen-1"] == 9120
    assert most["equal_updates-1"] == 4800
    assert launches_of_tables(script) == {}, "what is finished is not done again"


def test_the_narrow_start_is_three_seeds_of_trained_and_frozen_and_its_causes_are_equal_too(tmp_path: Path) -> None:
    script = checkout(tmp_path)
    planned = launches_of_tables(script, "--narrow", "ray.num_cpus=2")
    assert sorted(planned) == [f"{name}-{seed}" for name in ("narrow", "narrow_frozen") for seed in (1, 2, 3)]
    built = [line.split("\x1f") for line in (tmp_path / "calls").read_text().splitlines() if "--narrow" in line]
    (build,) = built
    path = f"recipes.agent0.proposer.path={build[build.index('--out') + 1]}"
    assert build[:3] == ["-m", "agentevolver.recipes.offline.seed.calc", "--narrow"]
    for arguments in planned.values():
        assert path in arguments and "ray.num_cpus=2" in arguments and rollouts_of(arguments) == 9120
        assert parse(arguments).conf is not None and "--narrow" not in arguments
    causes = launches_of_tables(script, SEEDS="1", CONDITIONS="narrow_malformed narrow_steps")
    assert list(causes) == ["narrow_malformed-1", "narrow_steps-1"]
    assert all(path in call and abs(rollouts_of(call) - 9120) <= 4 for call in causes.values())
