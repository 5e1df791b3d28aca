"""Experience pool of a run: listed, searched and edited through the store's own API.

Reading takes no lock, so the page never delays a training run. An edit is one transaction; the run sees the edit at its
next search. The page never creates a store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from agentevolver.llm.embeddings import EncoderUnavailable
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.files import signature
from agentevolver.utils.ownership import is_ours, orders
from agentevolver.view.experiment import BadPageRequest, Experiment, NotThere, UnreadableFile
from experience_manager.errors import ExperienceError, UnknownExperience
from experience_manager.experience import PERSON, Category, Experience
from experience_manager.pool import Configuration, Pool
from experience_manager.prompt_injection import MAX_CONTENT, MAX_WHEN_TO_USE, problem_with_text, tidy
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Store

PAGE = 50
TEXTS = ("when_to_use", "content", "scope")
_LIMITS = {"when_to_use": MAX_WHEN_TO_USE, "content": MAX_CONTENT, "scope": 2000}

SORTS: dict[str, Callable[[Experience], Any]] = {
    "newest": lambda e: e.modified,
    "uses": lambda e: e.uses,
    "utility": lambda e: -1.0 if e.utility is None else e.utility,
    "lift": lambda e: float("-inf") if e.lift is None else e.lift,
    "paired": lambda e: e.paired_utility if e.paired else float("-inf"),
    "support": lambda e: e.support,
}


class ExperiencePool:
    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._inode = 0
        self._pools: dict[str, Pool] = {}

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def read(
        self,
        *,
        workspace: str = "",
        text: str = "",
        by_meaning: bool = False,
        category: str = "",
        sort: str = "newest",
        offset: int = 0,
        limit: int = PAGE,
    ) -> dict[str, Any]:
        """Return `{exists, workspaces, workspace, total, rows}`, or `{exists, path}` without a store. Raises ViewError.

        Args:
            workspace: "": the run's own.
            text: text to search for, ignoring case; with `by_meaning`: the nearest experiences, best first.
            category: a category, or "pinned".
            sort: one of `SORTS`, descending.
        """
        if sort not in SORTS:
            raise BadPageRequest(f"sort: {sort!r} is not known, write {', '.join(SORTS)}")
        if category and category not in {*Category, "pinned"}:
            raise BadPageRequest(f"category: {category!r} is not known")
        configuration = self._configuration()
        if not configuration.store.is_file():
            return {"exists": False, "path": str(configuration.store)}
        with _Translated():
            store = self._open(configuration)
            workspaces = store.workspaces()
            name = workspace or configuration.exp_manager.reme.workspace_id
            if not workspace and name not in workspaces and workspaces:
                name = next(iter(workspaces))
            similarities: dict[str, float] = {}
            if text and by_meaning:
                hits = self._pool(configuration, name).search(text, limit)
                similarities = {hit.experience.id: hit.similarity for hit in hits}
                found = [hit.experience for hit in hits]
            else:
                found = [e for e in store.records(name) if not text or _mentions(e, text)]
                found.sort(key=SORTS[sort], reverse=True)
        found = [e for e in found if not category or (e.pinned if category == "pinned" else e.category == category)]
        rows = [_row(e) | {"similarity": similarities.get(e.id)} for e in found[offset : offset + limit]]
        return {"exists": True, "workspaces": workspaces, "workspace": name, "total": len(found), "rows": rows}

    def edit(self, workspace: str, identifier: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change texts or the pin of an experience. Raises ViewError and then changes nothing.

        Returns `{row, note}`: the experience, and a warning about its text or "".
        """
        checked = _checked(changes)
        configuration = self._configuration()
        with _Translated():
            store = self._open(configuration)
            before = store.get(workspace, identifier)
            changed = {name: value for name, value in checked.items() if getattr(before, name) != value}
            # An edited text counts as written by a person.
            if any(name in TEXTS for name in changed):
                changed["author"] = PERSON
            # The encoder takes seconds to load and is needed only if a text changes.
            if changed == {"pinned": checked.get("pinned")}:
                store.edit(workspace, before.id, changed, None, None)
            elif changed:
                self._pool(configuration, workspace).edit(before.id, **changed)
            after = store.get(workspace, before.id)
        return {"row": _row(after), "note": problem_with_text(f"{after.when_to_use}\n{after.content}") or ""}

    def delete(self, workspace: str, identifier: str) -> None:
        with _Translated():
            store = self._open(self._configuration())
            store.delete(workspace, [store.get(workspace, identifier).id])

    def _open(self, configuration: Configuration) -> Store:
        # A run may replace the file: an open connection would then read the deleted one.
        mark = signature(configuration.store)
        if mark is None:
            raise NotThere("this run has no experience pool (yet)")
        with self._lock:
            if self._store is None or self._store.path != configuration.store or self._inode != mark[0]:
                if self._store is not None:
                    self._store.close()
                self._store, self._inode, self._pools = configuration.open_store(), mark[0], {}
            return self._store

    def _pool(self, configuration: Configuration, workspace: str) -> Pool:
        store = self._open(configuration)
        written = self._experiment.folder / "config.yaml"
        if any(orders({"exp_manager": self._experiment.setting("exp_manager")})) and not is_ours(written):
            raise UnreadableFile(f"this checkout did not write {written}: the encoder that it names is not asked")
        with self._lock:
            if workspace not in self._pools:
                self._pools[workspace] = configuration.pool(store, workspace)
            return self._pools[workspace]

    def _configuration(self) -> Configuration:
        # An unreadable section is ignored: the store records how it is searched.
        section = self._experiment.setting("exp_manager")
        if isinstance(section, dict):
            try:
                settings = ExperienceSettings.model_validate(section)
            except ValidationError:
                return Configuration(experiment_dir=self._experiment.folder)
            return Configuration(exp_manager=settings, experiment_dir=self._experiment.folder, given=True)
        return Configuration(experiment_dir=self._experiment.folder)


class _Translated:
    """Converts the pool's errors to the page's."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnknownExperience):
            raise NotThere(str(error)) from error
        if isinstance(error, ExperienceError | EncoderUnavailable | ConfigError):
            raise UnreadableFile(str(error)) from error


def _checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(changes) - {*TEXTS, "pinned"})
    if unknown or not changes:
        raise BadPageRequest(f"{unknown[0]!r} cannot be changed here" if unknown else "nothing to change")
    out: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "pinned":
            if not isinstance(value, bool):
                raise BadPageRequest("pinned must be true or false")
            out[name] = value
            continue
        if not isinstance(value, str):
            raise BadPageRequest(f"{name} is a text")
        out[name] = tidy(value)
        if len(out[name]) > _LIMITS[name]:
            raise BadPageRequest(f"{name} has {len(out[name])} characters, {_LIMITS[name]} are allowed")
        if not out[name] and name != "scope":
            raise BadPageRequest(f"{name} must not be empty")
    return out


def _mentions(experience: Experience, text: str) -> bool:
    whole = (
        experience.id,
        experience.when_to_use,
        experience.content,
        experience.scope,
        experience.task_query,
        *experience.task_ids,
    )
    return text.casefold() in "\n".join(whole).casefold()


def _row(experience: Experience) -> dict[str, Any]:
    own = asdict(experience)
    own.pop("metadata")
    return own | {
        "category": experience.category.value,
        "utility": experience.utility,
        "lift": experience.lift,
        "by_person": experience.by_person,
        "trajectory_ids": len(experience.trajectory_ids),
    }
