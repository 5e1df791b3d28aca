"""Settings of the rule-based teacher, and the environments it knows."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from agentevolver.llm.settings import Purpose, Role, StandIn
from agentevolver.utils.net import http_url

# The environments that the teacher knows, by the role's purpose.
KNOWS: dict[Purpose, tuple[str, ...]] = {
    "episodes": ("pocket", "pocket_app"),
    "notes": ("pocket", "pocket_app", "pocket_long"),
}
POLICY_ENVIRONMENTS = ("pocket", "pocket_long", "pocket_app")
"""The environments that the seed policy was trained for."""


class TeacherSettings(StandIn):
    """The rule-based teacher: a stand-in for a language model that knows PocketWorld."""

    url: str = Field(
        "http://127.0.0.1:8093/v1",
        description="address of the teacher; the launcher starts it if a role's base_url is `offline`",
    )
    seed: int = Field(0, description="seed of its draws and mistakes")
    hallucinated: float = Field(
        0.15, ge=0, le=1, description="share of synthesised tasks that do not hold in the world"
    )
    malformed: float = Field(0.02, ge=0, le=1, description="share of replies that are no JSON, or half of one")
    wrong_labels: float = Field(0.1, ge=0, le=1, description="share of step labels that are swapped")
    wrong_grades: float = Field(0.02, ge=0, le=1, description="share of grades that are swapped")
    wrong_accepts: float = Field(0.005, ge=0, le=1, description="share of acceptance verdicts that are swapped")
    wrong_experiences: float = Field(0.05, ge=0, le=1, description="share of experiences that are false")
    slips: float = Field(0.05, ge=0, le=1, description="share of the verifier's actions replaced by a random look-up")

    @field_validator("url")
    @classmethod
    def _is_local(cls, value: str) -> str:
        parts = urlsplit(http_url(value))
        if parts.scheme != "http" or parts.port is None or parts.path.rstrip("/") != "/v1":
            raise ValueError("must be of the form http://127.0.0.1:PORT/v1")
        return value.rstrip("/")

    @property
    def rates(self) -> dict[str, float]:
        return {name: value for name, value in self.model_dump().items() if name not in ("url", "seed")}

    def arguments(self) -> list[str]:
        parts = urlsplit(self.url)
        rates = [f"--{name.replace('_', '-')}={value:g}" for name, value in self.rates.items()]
        return [
            "-m",
            "agentevolver.recipes.offline.teacher",
            f"--host={parts.hostname}",
            f"--port={parts.port}",
            f"--seed={self.seed}",
            *rates,
        ]

    def problem(self, role: Role, env_types: Sequence[str], purpose: Purpose) -> str | None:
        """Return a message that names the first environment that it does not know, or None."""
        unknown = next((name for name in env_types if name not in KNOWS[purpose]), None)
        if unknown is None:
            return None
        known = ", ".join(KNOWS[purpose])
        return f"as {role.value} the built-in teacher knows the environments {known} alone, not {unknown}"
