"""The tasks of a split under any of its usual names.

Environments name what is held out for choosing a model `val` or `dev`. Whoever asks need not know which: a name that an
environment refuses is tried under the others that mean the same. A name that it has is always its own split.
"""

from __future__ import annotations

from typing import Any

from env_service.base import BaseEnv

SAME = (("val", "dev", "validation"), ("test", "test_normal"))


def list_tasks(env_class: type[BaseEnv], split: str, params: dict[str, Any] | None) -> list[str]:
    """Return the task ids of a split; raises what the environment says to the name that was asked for."""
    try:
        return env_class.get_query_list(split, params)
    except ValueError as error:
        for other in next((names for names in SAME if split in names), ()):
            if other != split:
                try:
                    return env_class.get_query_list(other, params)
                except ValueError:
                    continue
        raise error
