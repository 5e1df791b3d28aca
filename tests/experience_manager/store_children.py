"""What other processes do to a store: `python store_children.py MODE PATH NUMBER`. Each line they print is one fact,
flushed."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from experience_fakes import SMALL, experience

from experience_manager.errors import StoreUnwritable
from experience_manager.pool import Pool
from experience_manager.store import Count, Store

BATCH = 20
TURNS = 12


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def batch(name: str) -> list[Any]:
    return [
        experience(f"batch {name} number {i}", f"do {i} then " + "long " * 40, id=f"{name}-{i}") for i in range(BATCH)
    ]


def insert_for_ever(path: Path, number: int) -> None:
    with Store(path) as store:
        pool, turn = Pool(store, SMALL), 0
        while True:
            say(trying=f"{number}.{turn}")
            pool.put(batch(f"{number}.{turn}"))
            say(done=f"{number}.{turn}")
            turn += 1


def write_and_read(path: Path, number: int) -> None:
    """Insert batches, join the same lesson to everybody else's, count, and look at what the others did."""
    with Store(path) as store:
        pool = Pool(store, SMALL)
        for turn in range(TURNS):
            pool.put(batch(f"{number}.{turn}"))
            shared = pool.add(
                [experience("when all say the same", "it is one lesson", trajectory_ids=(f"{number}.{turn}",))]
            ).ids[0]
            pool.count({shared: Count(uses=1, successes=turn % 2)})
            seen = [
                hit.experience.id.split("-")[0] for hit in pool.search("batch number", 5000) if "." in hit.experience.id
            ]
            torn = {name: seen.count(name) for name in set(seen) if seen.count(name) != BATCH}
            say(turn=turn, torn=torn, own=f"{number}.{turn}" in seen)


def insert_until_full(path: Path, number: int) -> None:
    """Insert under a limit on the size of files, then without it."""
    with Store(path) as store:
        pool = Pool(store, SMALL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, resource.RLIM_INFINITY))
        turn = 0
        try:
            while turn < 1000:
                pool.put(batch(str(turn)))
                say(done=str(turn))
                turn += 1
        except StoreUnwritable as error:
            say(full=str(error))
        say(found=len(pool.search("batch number", 5000)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        pool.put(batch("after"))
        say(done="after")


if __name__ == "__main__":
    modes = {f.__name__: f for f in (insert_for_ever, write_and_read, insert_until_full)}
    modes[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
