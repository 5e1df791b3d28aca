"""`python -m env_service.listing`: import environment classes and list their splits, without a service.

Reads `{"classes": {name: "module:Class"}, "lists": [{"env_type", "split", "params"}]}` on stdin. The last line of
stdout is a list of problems, `{"name", "asked": index in lists or null, "refused": bool, "text"}`. `refused`: the
module, class or split does not exist; otherwise something may be missing on this machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from env_service.base import BaseEnv
from env_service.contract import ContractError, checked_tasks, list_tasks
from env_service.registry import RegistryError, load


def check(classes: Mapping[str, str], lists: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Import the classes, list the splits, and return the problems."""
    found: dict[str, type[BaseEnv]] = {}
    problems: list[dict[str, Any]] = []

    def note(name: str, text: str, *, asked: int | None = None, refused: bool = True) -> None:
        problems.append({"name": name, "asked": asked, "refused": refused, "text": " ".join(text.split())})

    for name, spec in classes.items():
        try:
            found[name] = load(spec)
        except RegistryError as error:
            note(name, str(error))
        except Exception as error:  # a module may raise anything while it is imported
            note(name, f"cannot import environment {spec!r}: {type(error).__name__}: {error}")
    for place, asked in enumerate(lists):
        name, split = asked["env_type"], asked["split"]
        if name not in found:
            continue
        try:
            if not checked_tasks(list_tasks(found[name], split, asked["params"] or None)):
                note(name, f"the environment {name!r} lists no task in its split {split!r}", asked=place)
        except (ValueError, ContractError) as error:
            note(name, str(error), asked=place)
        except Exception as error:  # an environment may raise anything
            note(name, f"the environment {name!r} cannot list its split {split!r}: {error}", asked=place, refused=False)
    return problems


def main() -> int:
    # A process of its own, because importing a class may run anything.
    request = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        problems = check(request["classes"], request["lists"])
    print(json.dumps(problems))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
