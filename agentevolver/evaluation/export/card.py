"""Model card of an exported policy: training data, scores before and after, configuration and commands.

Parts without data in the run's folder are left out. Secrets are masked.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentevolver.config.load import compose_defaults
from agentevolver.config.trees import leaves, select
from agentevolver.evaluation.export.source import Source
from agentevolver.trainer.monitor.results import Comparison, compare, figure
from agentevolver.utils.experiments import launches
from agentevolver.utils.secrets import masked_arguments, masked_text, masked_tree

CONFIG = "agentevolver.yaml"
# Keys about the run's folder and machine, which do not describe the training.
_ELSEWHERE = ("experiment", "trainer.default_local_dir", "env_service.env_url", "device_env", "ray", "llm.teacher.url")


def read_config(experiment: Path | None) -> dict[str, Any] | None:
    """Return the resolved configuration of a run, or None if there is none."""
    if experiment is None or not (path := experiment / "config.yaml").is_file():
        return None
    tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return {str(key): value for key, value in tree.items()} if isinstance(tree, dict) else None


def base_model(config: Mapping[str, Any] | None) -> str | None:
    found = None if config is None else select(config, "actor_rollout_ref.model.path")
    return None if found is None else str(found)


def model_card(source: Source, config: Mapping[str, Any] | None, command: Sequence[str], *, adapters: bool) -> str:
    """Return the card as markdown with the hub's front matter.

    Args:
        config: the run's resolved configuration.
        command: command line of the export.
        adapters: whether the folder holds only adapters.
    """
    launch = next(launches(source.experiment), None) if source.experiment is not None else None
    parts = [_head(base_model(config), adapters=adapters), f"# {source.name}\n"]
    parts.append(
        "A language model agent, trained by reinforcement learning in its environment with AgentEvolver"
        + (f", {source.step} steps" if source.step is not None else "")
        + ".\n"
    )
    if config is not None:
        parts.append(_trained_on(config, source.experiment))
    if source.experiment is not None and (found := compare(source.experiment, source.step)):
        parts.append(_figures(found))
    if config is not None:
        parts.append(_configuration(config))
    parts.append(_commands(launch, command))
    return masked_text("\n".join(parts)).rstrip() + "\n"


def _head(base: str | None, *, adapters: bool) -> str:
    # A folder of this machine is no model on the hub.
    named = f"base_model: {base}\n" if base is not None and base.count("/") == 1 and not Path(base).exists() else ""
    library = "peft" if adapters else "transformers"
    return (
        f"---\n{named}library_name: {library}\npipeline_tag: text-generation\n"
        "tags:\n- agent\n- reinforcement-learning\n- agentevolver\n---\n"
    )


def _trained_on(config: Mapping[str, Any], experiment: Path | None) -> str:
    named = select(config, "env_service.environments") or {}
    base = base_model(config)
    worlds = ", ".join(named) or str(select(config, "env_service.env_type"))
    rows = [
        ("environment", worlds),
        ("began with", base if base is None or not Path(base).exists() else Path(base).name),
        ("training split", select(config, "data.train_split")),
    ]
    if experiment is not None and (tasks := _tasks(config, experiment / "tasks")):
        rows.append(("tasks", tasks))
    rows.append(("advantage", select(config, "algorithm.adv_estimator")))
    rows.append(("rollouts per task and step", select(config, "actor_rollout_ref.rollout.n")))
    helps = [
        name
        for name, key in (
            ("self-questioning", "task_manager.mixture.synthetic_data_ratio"),
            ("self-attributing", "attribution_driven_credit_assignment.enable"),
        )
        if select(config, key)
    ]
    guided = select(config, "exp_manager.train_rollout_mode")
    helps += ["self-navigating"] if guided not in (None, "woexp") else []
    rows.append(("added to policy gradients", ", ".join(helps) or "nothing"))
    lines = [f"| {name} | {value} |" for name, value in rows if value is not None]
    return "\n".join(["## Trained on\n", "| | |", "|---|---|", *lines, ""])


def _tasks(config: Mapping[str, Any], folder: Path) -> str:
    own = select(config, "task_manager.mixture.use_original_tasks") is not False
    parts = (
        ("of the environment trained on", "train.jsonl", own),
        ("of its own making trained on", "tasks_explored.train*.jsonl", True),
        ("validated on", "val.jsonl", True),
    )
    counts = []
    for name, file, used in parts:
        found = [path for path in folder.glob(file) if path.is_file()] if used else []
        if found:
            counts.append(f"{sum(len(path.read_bytes().splitlines()) for path in found)} {name}")
    return ", ".join(counts)


def _figures(found: Sequence[Comparison]) -> str:
    lines = [
        "## Figures\n",
        "Validation of the run itself: mean reward over the tasks, its 95 % interval in brackets; `gain` is task by "
        "task.\n",
        "| validated on | rollouts a task | before (step) | after (step) | gain |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        before = f"{figure(one.first.average, one.before)} ({one.first.step})"
        after = f"{figure(one.last.average, one.after)} ({one.last.step})"
        if one.first.step == one.last.step:
            before, gain = "not measured", ""
        else:
            gain = one.gain.shown("+") if one.gain is not None else f"{one.last.average - one.first.average:+.3f}"
        lines.append(f"| {one.source} | {one.last.n} | {before} | {after} | {gain} |")
    return "\n".join([*lines, ""])


def _configuration(config: Mapping[str, Any]) -> str:
    """Return the keys that differ from the defaults. The full configuration is in `CONFIG` beside the card."""
    defaults = OmegaConf.to_container(compose_defaults(select(config, "device_name") or "cuda"), resolve=False)
    differing = [
        f"{path}: {json.dumps(value)}"
        for path, value in leaves(masked_tree(config))
        if not path.startswith(_ELSEWHERE) and not _is_default(defaults, path, value)
    ]
    return "\n".join(
        [
            "## Configuration\n",
            f"The full configuration is in `{CONFIG}`. Keys that differ from the defaults:\n",
            "```yaml",
            *differing,
            "```",
            "",
        ]
    )


def _is_default(defaults: Any, path: str, value: Any) -> bool:
    if select(defaults, path) == value:
        return True
    # A default that refers to another key follows it, and that key is listed itself.
    parts = path.split(".")
    above = (select(defaults, ".".join(parts[:depth])) for depth in range(1, len(parts) + 1))
    return any(isinstance(default, str) and "${" in default for default in above)


def _commands(launch: Mapping[str, Any] | None, command: Sequence[str]) -> str:
    lines = ["## Commands\n", "```bash"]
    if launch is not None:
        lines.append(f"agentevolver run {shlex.join(masked_arguments(launch['argv']))}")
    lines += [shlex.join(masked_arguments(command)), "```", ""]
    if launch is not None:
        code, packages = launch.get("code") or {}, launch.get("packages") or {}
        versions = ", ".join(
            f"{name} {packages[name]}" for name in ("torch", "vllm", "verl", "transformers") if name in packages
        )
        commit = code.get("commit")
        lines.append(
            (f"Code at commit `{commit}`{' with changes' if code.get('dirty') else ''}; " if commit else "")
            + versions
            + "."
        )
    return "\n".join([*lines, ""])
