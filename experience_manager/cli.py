"""Commands on the experience pool; `agentevolver.cli.commands.experience_manager` describes their arguments."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from agentevolver.llm.message_logs import LogError, read_logs
from agentevolver.types import Trajectory
from agentevolver.utils import recipes
from agentevolver.utils.names import imported
from experience_manager.dumps import read_dump, write_dump
from experience_manager.errors import ExperienceError
from experience_manager.experience import PERSON, Category, Experience, to_reme
from experience_manager.index import Where
from experience_manager.pool import Configuration, prune
from experience_manager.prompt_injection import problem_with_text, tidy
from experience_manager.ranking import RankingContext, make_ranking
from experience_manager.store import Store

if TYPE_CHECKING:
    from experience_manager.manager import Filling


def run_list(options: argparse.Namespace, configuration: Configuration) -> int:
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
    with configuration.open_store() as store:
        print(
            json.dumps(to_reme(store.get(_workspace(options, configuration), options.id)), ensure_ascii=False, indent=2)
        )
    return 0


def run_search(options: argparse.Namespace, configuration: Configuration) -> int:
    with configuration.open_store() as store:
        hits = configuration.pool(store, options.workspace).search(
            options.text, options.k, Where(context=options.context)
        )
    for hit in hits:
        print(f"{hit.similarity:.3f}  {_line(hit.experience)}")
    return 0


def run_add(options: argparse.Namespace, configuration: Configuration) -> int:
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
    given = {"when_to_use": options.when, "content": options.content, "scope": options.scope}
    changes: dict[str, Any] = {name: tidy(value) for name, value in given.items() if value is not None}
    if not changes:
        raise ExperienceError("nothing to change: give --when, --content or --scope")
    _warn_of("\n".join(changes.values()))
    with configuration.open_store() as store:
        print(_line(configuration.pool(store, options.workspace).edit(options.id, author=PERSON, **changes)))
    return 0


def _set_pinned(options: argparse.Namespace, configuration: Configuration, *, pinned: bool) -> int:
    with configuration.open_store() as store:
        workspace = _workspace(options, configuration)
        for identifier in [store.get(workspace, given).id for given in options.id]:
            store.edit(workspace, identifier, {"pinned": pinned}, None, None)
    return 0


run_pin, run_unpin = partial(_set_pinned, pinned=True), partial(_set_pinned, pinned=False)


def run_delete(options: argparse.Namespace, configuration: Configuration) -> int:
    with configuration.open_store() as store:
        workspace = _workspace(options, configuration)
        ids = [store.get(workspace, identifier).id for identifier in options.id]
        print(f"{store.delete(workspace, ids)} deleted")
    return 0


def run_prune(options: argparse.Namespace, configuration: Configuration) -> int:
    section = configuration.exp_manager
    workspace = _workspace(options, configuration)
    with configuration.open_store() as store:
        ranking = make_ranking(section.ranking, RankingContext(store, workspace))
        uses = section.pruning.min_uses if options.min_uses is None else options.min_uses
        utility = section.pruning.min_utility if options.min_utility is None else options.min_utility
        count = prune(store, workspace, ranking, min_uses=uses, min_utility=utility)
    print(f"{count} deleted")
    return 0


def run_stats(options: argparse.Namespace, configuration: Configuration) -> int:
    with configuration.open_store() as store:
        stamp = store.stamp
        files = [path for path in (store.path, store.path.with_name(store.path.name + "-wal")) if path.exists()]
        print(f"{store.path}: {sum(path.stat().st_size for path in files) / 1e6:.2f} MB", end="")
        print(f", vectors of {stamp.encoder} ({stamp.dimension}) over {stamp.embedded_text}" if stamp else ", empty")
        for workspace in store.workspaces():
            _print_workspace(store, workspace)
    return 0


def run_check(options: argparse.Namespace, configuration: Configuration) -> int:
    with configuration.open_store() as store:
        store.check()
        print(f"{store.path}: sound")
    return 0


def run_export(options: argparse.Namespace, configuration: Configuration) -> int:
    with configuration.open_store() as store:
        count = write_dump(options.file, store.each(_workspace(options, configuration)))
    print(f"{options.file}: {count} experiences")
    return 0


def run_import(options: argparse.Namespace, configuration: Configuration) -> int:
    with configuration.open_store(create=True) as store:
        pool = configuration.pool(store, options.workspace)
        experiences = read_dump(options.file, pool.workspace)
        take = pool.replace_all if options.replace else pool.add if options.merge else pool.put
        added = take(experiences)
    print(f"{added.inserted} imported, {added.joined} merged into others")
    return 0


def run_distill(options: argparse.Namespace, configuration: Configuration) -> int:
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
            f"({tasks}; the log says why): run the same command again, duplicates are merged"
        )
    return 0


def run_serve(options: argparse.Namespace, configuration: Configuration) -> int:
    serve = recipes.stages("command").get("experience_manager serve")
    if serve is None:
        raise ExperienceError("no installed recipe serves the pool over HTTP")
    return int(imported(serve)(options, configuration))


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
