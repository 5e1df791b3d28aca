"""Reference solutions of long tasks."""

from env_service.environments.pocket.calls import Syntax, render
from env_service.environments.pocket.long_env import make_chain
from env_service.environments.pocket.quirks import quirks_of, signature


def long_reference(task_id: str, syntax: Syntax = "compact") -> list[str]:
    """Return the reference solution of a long task, all its goals in order, as assistant messages would write it."""
    chain = make_chain(task_id)
    quirks = quirks_of(chain.site)
    return [render(call, signature(call.tool, quirks), syntax) for goal in chain.goals for call in goal.solution]
