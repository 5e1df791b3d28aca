"""Copy-on-access databases of episodes: a record is copied when it is first read by key.

Parsing or deep-copying takes 240 ms in airline. `table[key]` copies; `values` and `items` give the shared records,
which the package's tools only read.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from env_service.environments.tau2.package import Domain


class ForkedTable(dict[str, Any]):
    """A table with shared records until they are read by key, or set."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__(shared)
        self.touched: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        record = super().__getitem__(key)
        if key in self.touched:
            return record
        self[key] = copy.deepcopy(record)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.touched.add(key)
        super().__delitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the episode's own record, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: str, *default: Any) -> Any:
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value


def fork(shared: Any) -> Any:
    """Return a database of the same class for one episode; changes to it leave `shared` as it is."""
    fields = {name: getattr(shared, name) for name in type(shared).model_fields}
    return type(shared).model_construct(
        **{
            name: ForkedTable(value) if isinstance(value, dict) else copy.deepcopy(value)
            for name, value in fields.items()
        }
    )


def new_environment(domain: Domain, *, solo: bool = False) -> Any:
    if domain.user_tools is None:
        return domain.environment(domain.name, domain.policy, domain.tools(fork(domain.database)))
    made = domain.environment(
        domain.name,
        domain.solo_policy if solo else domain.policy,
        domain.tools(fork(domain.database)),
        domain.user_tools(copy.deepcopy(domain.user_database)),
    )
    made.solo_mode = solo
    return made


def set_initial_state(environment: Any, task: Any) -> None:
    initial = task.initial_state
    environment.set_state(
        initialization_data=initial.initialization_data if initial else None,
        initialization_actions=initial.initialization_actions if initial else None,
        message_history=(initial.message_history or []) if initial else [],
    )


def changes(database: Any, shared: Any) -> dict[str, Any]:
    """Return a forked database's differences: table -> key -> record, None if it was deleted. The package's hashes of
    two databases are equal if these are."""
    found: dict[str, Any] = {}
    for name in type(shared).model_fields:
        value, before = getattr(database, name), getattr(shared, name)
        if not isinstance(value, ForkedTable):
            now = plain(value)
            differing = {} if now == plain(before) else {"": now}
        else:
            differing = {}
            for key in sorted(value.touched, key=str):
                now = plain(dict.get(value, key))
                if now != plain(before.get(key)):
                    differing[str(key)] = now
        if differing:
            found[name] = differing
    return found


def plain(value: Any) -> Any:
    """Return a value as the package hashes it: as JSON, with other values as text."""
    return json.loads(json.dumps(_dumped(value), default=str))


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {key: _dumped(item) for key, item in value.items()}
    return [_dumped(item) for item in value] if isinstance(value, list | tuple) else value
