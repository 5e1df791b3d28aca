"""The packages that the documentation is about, and where they stand."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "agentevolver",
    "env_service",
    "task_manager",
    "experience_manager",
    "advantage_processor",
    "context_manager",
)
