"""What the commands need of a configuration: the task manager's section and its neighbours, out of an experiment or a file of sections.

`--conf` reads an experiment as the launcher does. `--settings` reads a yaml with the sections `task_manager`, `llm`, `env_service`
and `data` alone, for use without the rest of the framework. A key that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentevolver.config.load import read_overrides, read_yaml
from agentevolver.errors import ConfigError
from agentevolver.llm.settings import LLMSettings, Role
from task_manager.settings import TaskManagerSettings

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Service(_Section):
    """Which environment, and where."""

    env_type: str = Field("pocket", min_length=1)
    env_url: str = Field("http://127.0.0.1:8080", pattern=r"^https?://[^/]+(/.*)?$")
    external: bool = False
    env_params: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float = Field(300.0, gt=0)


class Splits(_Section):
    """Whose worlds are explored, and what must not be trained on."""

    train_split: str = "train"
    train_filter: dict[str, Any] = Field(default_factory=dict)
    val_splits: list[str] = Field(default_factory=lambda: ["dev"])
    val_filter: dict[str, Any] = Field(default_factory=dict)


class Configuration(_Section):
    """Everything that a questioning run reads."""

    task_manager: TaskManagerSettings = TaskManagerSettings()
    llm: LLMSettings = LLMSettings()
    env_service: Service = Service()
    data: Splits = Splits()

    @property
    def models(self) -> dict[str, str]:
        """What tells each role's model and sampling apart from others, by role."""
        out = {}
        for role in Role:
            endpoint = self.llm.endpoint(role)
            parts = endpoint.model_dump(include={"base_url", "model", "sampling"})
            if role.value in ("explorer", "synthesiser", "verifier", "judge") and endpoint.base_url == "offline":
                parts["teacher"] = self.llm.teacher.model_dump(exclude={"url"})
            out[role.value] = repr(sorted(parts.items()))
        return out


def from_settings_file(path: Path, overrides: Sequence[str] = ()) -> Configuration:
    """Read a file of sections; raises ConfigError with one line."""
    tree = OmegaConf.merge(OmegaConf.create(read_yaml(path)), OmegaConf.create(read_overrides(list(overrides))))
    return _checked(OmegaConf.to_container(tree, resolve=True), str(path))


def from_experiment(path: Path, overrides: Sequence[str] = ()) -> Configuration:
    """Read an experiment as the launcher does; raises ConfigError with one line."""
    from agentevolver.config.checks import load

    return from_settings(load(path, list(overrides)).settings)


def from_settings(settings: Settings) -> Configuration:
    """Return what questioning reads of a training run's settings; what it spends counts as the run's."""
    tree = settings.model_dump()
    sections = {
        "task_manager": tree["task_manager"],
        "llm": {
            **tree["llm"],
            "ledger": settings.usage_ledger,
            "cache": settings.llm.task_making_cache(settings.experiment_dir),
        },
        "env_service": {name: tree["env_service"][name] for name in Service.model_fields},
        "data": {name: tree["data"][name] for name in Splits.model_fields},
    }
    return Configuration.model_validate(sections)


def _checked(tree: Any, source: str) -> Configuration:
    try:
        return Configuration.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{source}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}, found {first['input']!r}") from error
