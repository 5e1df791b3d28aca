"""Commands on the experience pool: each `run_*` prints to the screen and raises what the library raises."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentevolver.llm.settings import OFFLINE, POLICY, LLMSettings, Role
from agentevolver.message_logs import LogError, read_logs
from agentevolver.types import Trajectory
from agentevolver.utils.secrets import secret
from experience_manager.errors import ExperienceError
from experience_manager.experience import PERSON, Category, Experience, to_reme
from experience_manager.index import Where
from experience_manager.pool import Configuration, prune
from experience_manager.reme.bodies import read_dump, write_dump
from experience_manager.screen import problem_with_text, tidy
from experience_manager.store import Store

if TYPE_CHECKING:
    from experience_manager.manager import Filling


def run_list(options: argparse.Namespace, configuration: Configuration) -> int:
    """Print experiences, the first of the chosen order on top."""
    with configuration.open_store() as store:
        found, count = store.ranked(
            _workspace(options, configuration),
            options.sort,
            max(0, options.limit),
            category=options.category,
            scope=options.scope,
        )
    for experience in found:
        print(json.dumps(to_reme(experience), ensure_ascii=False) if options.json else _line(experience))
    if count > len(found) and not options.json:
        print(f"... {count - len(found)} more (--limit)")
    return 0


def run_show(options: argparse.Namespace, configuration: Configuration) -> int:
    """Print one experience as JSON."""
    with configuration.open_store() as store:
        print(
            json.dumps(to_reme(store.get(_workspace(options, configuration), options.id)), ensure_ascii=False, indent=2)
        )
    return 0


def run_search(options: argparse.Namespace, configuration: Configuration) -> int:
    """Print the nearest experiences with their similarities."""
    with configuration.open_store() as store:
        hits = configuration.pool(store, options.workspace).search(
            options.text, options.k, Where(context=options.context)
        )
    for hit in hits:
        print(f"{hit.similarity:.3f}  {_line(hit.experience)}")
    return 0


def run_add(options: argparse.Namespace, configuration: Configuration) -> int:
    """Add an experience that a person wrote; it is pinned."""
    _warn_of(f"{options.when}\n{options.content}")
    experience = Experience(
        tidy(options.when),
        tidy(options.content),
        scope=tidy(options.scope or ""),
        category=Category.MANUAL,
        author=PERSON,
        pinned=True,
    )
    with configuration.open_store(create=True) as store:
        added = configuration.pool(store, options.workspace).put([experience])
    print(added.ids[0])
    return 0


def run_edit(options: argparse.Namespace, configuration: Configuration) -> int:
    """Change texts of an experience, which are a person's from then on."""
    given = {"when_to_use": options.when, "content": options.content, "scope": options.scope}
    changes: dict[str, Any] = {name: tidy(value) for name, value in given.items() if value is not None}
    if not changes:
        raise ExperienceError("nothing to change: give --when, --content or --scope")
    _warn_of("\n".join(changes.values()))
    with configuration.open_store() as store:
        print(_line(configuration.pool(store, options.workspace).edit(options.id, author=PERSON, **changes)))
    return 0


def run_pin(options: argparse.Namespace, configuration: Configuration) -> int:
    """Pin experiences."""
    return _set_pinned(options, configuration, pinned=True)


def run_unpin(options: argparse.Namespace, configuration: Configuration) -> int:
    """Unpin experiences."""
    return _set_pinned(options, configuration, pinned=False)


def run_delete(options: argparse.Namespace, configuration: Configuration) -> int:
    """Delete experiences; all of them, or none if an id is not known."""
    with configuration.open_store() as store:
        workspace = _workspace(options, configuration)
        ids = [store.get(workspace, identifier).id for identifier in options.id]
        print(f"{store.delete(workspace, ids)} deleted")
    return 0


def run_prune(options: argparse.Namespace, configuration: Configuration) -> int:
    """Delete what was of too little use."""
    with configuration.open_store() as store:
        count = prune(
            store,
            _workspace(options, configuration),
            configuration.exp_manager.pruning,
            configuration.exp_manager.utility,
            min_uses=options.min_uses,
            min_utility=options.min_utility,
        )
    print(f"{count} deleted")
    return 0


def run_stats(options: argparse.Namespace, configuration: Configuration) -> int:
    """Print what each workspace holds."""
    with configuration.open_store() as store:
        stamp = store.stamp
        files = [path for path in (store.path, store.path.with_name(store.path.name + "-wal")) if path.exists()]
        print(f"{store.path}: {sum(path.stat().st_size for path in files) / 1e6:.2f} MB", end="")
        print(f", vectors of {stamp.encoder} ({stamp.dimension}) over {stamp.embedded_text}" if stamp else ", empty")
        for workspace in store.workspaces():
            _print_workspace(store, workspace)
    return 0


def run_check(options: argparse.Namespace, configuration: Configuration) -> int:
    """Read the whole file."""
    with configuration.open_store() as store:
        store.check()
        print(f"{store.path}: sound")
    return 0


def run_export(options: argparse.Namespace, configuration: Configuration) -> int:
    """Write a dump."""
    with configuration.open_store() as store:
        count = write_dump(options.file, store.each(_workspace(options, configuration)))
    print(f"{options.file}: {count} experiences")
    return 0


def run_import(options: argparse.Namespace, configuration: Configuration) -> int:
    """Read a dump; its workspace is the one of the options."""
    with configuration.open_store(create=True) as store:
        pool = configuration.pool(store, options.workspace)
        experiences = read_dump(options.file, pool.workspace)
        take = pool.replace_all if options.replace else pool.add if options.merge else pool.put
        added = take(experiences)
    print(f"{added.inserted} imported, {added.joined} joined to others")
    return 0


def run_distill(options: argparse.Namespace, configuration: Configuration) -> int:
    """Distil trajectory files, or logs of other programs, into the store, with the summariser of the settings."""
    try:
        trajectories = read_logs(options.file, options.score)
    except LogError as error:
        raise ExperienceError(str(error)) from error
    filling = asyncio.run(_distill(configuration, trajectories))
    print(json.dumps(filling.metrics, indent=2))
    if filling.undistilled:
        tasks = ", ".join(filling.undistilled[:5]) + (", ..." if len(filling.undistilled) > 5 else "")
        raise ExperienceError(
            f"{len(filling.undistilled)} tasks were not distilled in full, as calls of the summariser were lost "
            f"({tasks}; the log says why): run the same command again, what says the same is joined"
        )
    return 0


def run_serve(options: argparse.Namespace, configuration: Configuration) -> int:
    """Serve until interrupted."""
    from agentevolver.llm import LLM
    from agentevolver.utils.web.access import Access
    from experience_manager.cli import summariser_problem
    from experience_manager.reme.client import TOKEN_VARIABLE
    from experience_manager.reme.service import ExperienceService, create_app, serve

    try:
        access = Access(options.host, secret(TOKEN_VARIABLE), TOKEN_VARIABLE)
    except ValueError as error:
        raise ExperienceError(f"--host {error}") from error
    with configuration.open_store(create=True) as store:
        settings, llm = configuration.fitted(store), LLM(configuration.llm)
        problem = summariser_problem(configuration.llm)
        told = (
            f"no summariser, so /summary_task_memory fails: {problem}"
            if problem
            else f"summariser: {configuration.author}"
        )
        print(told, file=sys.stderr, flush=True)
        service = ExperienceService(
            settings, store, configuration.encoder(store), llm, author=configuration.author, dump_dir=options.dump_dir
        )
        serve(create_app(service, access), options.host, options.port, on_exit=llm.aclose)
    return 0


async def _distill(configuration: Configuration, trajectories: list[Trajectory]) -> Filling:
    from agentevolver.llm import LLM
    from experience_manager.backend import EmbeddedBackend
    from experience_manager.manager import ExperienceManager

    with configuration.open_store(create=True) as store:
        settings = configuration.fitted(store)
    async with LLM(configuration.llm) as llm:
        backend = EmbeddedBackend.open(settings, configuration.store.parent, llm, author=configuration.author)
        manager = ExperienceManager(settings, backend)
        try:
            return await manager.warm_start(trajectories)
        finally:
            await manager.aclose()


def _set_pinned(options: argparse.Namespace, configuration: Configuration, *, pinned: bool) -> int:
    with configuration.open_store() as store:
        workspace = _workspace(options, configuration)
        for identifier in [store.get(workspace, given).id for given in options.id]:
            store.edit(workspace, identifier, {"pinned": pinned}, None, None)
    return 0


def _print_workspace(store: Store, workspace: str) -> None:
    found = store.summary(workspace)
    print(f"workspace {workspace}: {sum(found.kinds.values())} experiences, {found.pinned} pinned")
    kinds = ((category, found.kinds.get(category.value, 0)) for category in Category)
    print("  distilled from: " + ", ".join(f"{count} {category.value}" for category, count in kinds if count))
    share = f", {found.successes / found.uses:.2f} of them successful" if found.uses else ""
    lift = f", lift {found.lift / found.compared:+.2f}" if found.compared else ""
    print(f"  used: {found.used} experiences, {found.uses} times{share}{lift}")
    print(f"  places: {found.places}, last change {time.strftime('%F %T', time.localtime(found.modified))}")


def _line(experience: Experience) -> str:
    marks = "*" if experience.pinned else " "
    utility = "-" if experience.utility is None else f"{experience.utility:.2f}"
    lift = "-" if experience.lift is None else f"{experience.lift:+.2f}"
    facts = f"{experience.category.value:<11} score {experience.validation_score:.2f} support {experience.support:>2}"
    place = f"({experience.scope}) " if experience.scope else ""
    use = f"uses {experience.uses:>3} utility {utility:>4} lift {lift:>5}"
    use += f" paired {experience.paired_utility:+.2f}" if experience.paired else ""
    return f"{experience.id[:8]}{marks} {facts} {use}  {place}{experience.when_to_use} -> {experience.content}"


def _workspace(options: argparse.Namespace, configuration: Configuration) -> str:
    return options.workspace or configuration.exp_manager.reme.workspace_id


def _warn_of(text: str) -> None:
    problem = problem_with_text(text)
    if problem is not None:
        print(f"note: this text looks like a {problem}; it will be shown to the policy as it is")


_NAME_ONE = (
    "name a model: --set llm.base_url=https://HOST/v1 --set llm.model=NAME --set llm.api_key_env=VARIABLE, or "
    "--settings FILE (llm)"
)
_CONNECT_S = 2.0


def summariser_problem(llm: LLMSettings) -> str | None:
    """Return what is missing for a summariser, and what to do, None if there is nothing to be seen.

    Nothing is asked of a model: a key that is not set, and an endpoint on this machine that nobody listens at, are what
    can be seen.
    """
    endpoint = llm.endpoint(Role.SUMMARISER)
    if endpoint.base_url == POLICY:
        return f"llm.base_url is `policy`, the model of a training run, which is not served here; {_NAME_ONE}"
    if endpoint.base_url == OFFLINE:
        start = "start it (python -m agentevolver.builtin.teacher; it knows the pocket world alone)"
        silent = (
            f"the built-in teacher, llm.base_url `offline`, does not listen at {llm.teacher.url}; {start}, or "
            f"{_NAME_ONE}"
        )
        return None if _listens(llm.teacher.url) else silent
    from agentevolver.llm.endpoint import served_model
    from agentevolver.llm.errors import LLMError

    try:
        served_model(Role.SUMMARISER, endpoint)
    except LLMError as error:
        return str(error)
    if urlsplit(endpoint.base_url).hostname in ("localhost", "127.0.0.1", "::1") and not _listens(endpoint.base_url):
        return f"nothing listens at llm.base_url {endpoint.base_url}; start {endpoint.model} there, or {_NAME_ONE}"
    return None


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
