"""What a pool of 100,000 experiences takes: time and memory of everything that is done to one.

    python -m benchmarks.experience_scale [--records 100000] [--batch 100] [--places 2000]

Each row is a process of its own over the same file, so that its memory is what that alone takes: peak resident set,
less that of the process before it opened the pool. Encoding is left out: vectors (384 dimensions, as in
`benchmarks.experience`) are given. A half of the experiences hold in one of so many places. One compute thread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from dataclasses import replace  # noqa: E402

from benchmarks.experience import Given, K, made, newcomer_vectors, records  # noqa: E402
from experience_manager.experience import Experience  # noqa: E402
from experience_manager.index import Where  # noqa: E402
from experience_manager.pool import Pool  # noqa: E402
from experience_manager.store import Count, Store  # noqa: E402

TEXT = "when_to_use+content"
TIMES = 20


def experiences(count: int, first: int, places: int) -> list[Experience]:
    """Return experiences of the usual length, a half of them of one of so many places."""
    return [
        replace(e, scope=f"site k{i % places}" if i % 2 else "") for i, e in enumerate(records(count, first), first)
    ]


class Work:
    """A pool in a folder, and what is done to it; each method is one row, and `timed` what it measures."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.encoder = folder, options, Given()
        self.wall = self.cpu = 0.0
        self.times = 0

    def timed(self, action: Callable[[], object]) -> None:
        """Add a call's wall-clock and CPU seconds."""
        started = time.perf_counter(), time.process_time()
        action()
        self.wall += time.perf_counter() - started[0]
        self.cpu += time.process_time() - started[1]
        self.times += 1

    def pool(self) -> Pool:
        """Open the pool."""
        return Pool(Store(self.folder / "pool.sqlite"), self.encoder, threshold=0.85)

    def told(self, found: list[Experience], vectors: Any) -> list[Experience]:
        """Tell the encoder the vectors of experiences."""
        self.encoder.vectors = {e.embedded_text(TEXT): v for e, v in zip(found, vectors, strict=True)}
        return found

    def insert_all(self) -> None:
        """Insert 10,000 at a time, compared with nothing, as an import does."""
        pool, count = self.pool(), self.options.records
        vectors = made(count, 1)
        for start in range(0, count, 10_000):
            block = experiences(min(10_000, count - start), start, self.options.places)
            self.told(block, vectors[start : start + len(block)])
            self.timed(lambda block=block: pool.put(block))

    def merge(self) -> None:
        """Insert newcomers, compared with all, half of them near-duplicates: what a distilled step brings."""
        pool, batch, count = self.pool(), self.options.batch, self.options.records
        near = made(count, 1)[: batch // 2]
        pool.search(self.query(1)[0], K)
        for number in range(TIMES // 4):
            found = self.told(
                experiences(batch, count + batch * number, self.options.places), newcomer_vectors(near, number)
            )
            self.timed(lambda found=found: pool.add(found))

    def start(self) -> None:
        """Open the pool and find something for the first time."""
        self.query(1)
        self.timed(lambda: self.pool().search("0", K, Where(context="You are at site k7.")))

    def search(self) -> None:
        """Find the nearest that hold in a place."""
        pool = self.pool()
        texts = self.query(TIMES + 1)
        pool.search(texts[-1], K)
        where = Where(
            context="You are at site k7, a small office. " + "More words of an opening. " * 300, not_from=("task 3",)
        )
        for text in texts[:-1]:
            self.timed(lambda text=text: pool.search(text, K, where))

    def count(self) -> None:
        """Count the uses of 40 experiences."""
        pool = self.pool()
        for i in range(TIMES):
            self.timed(lambda i=i: pool.count({f"{j:032x}": Count(uses=1) for j in range(i, i + 40)}))

    def follow(self) -> None:
        """Find something after another process has inserted one experience."""
        pool, other = self.pool(), self.pool()
        (text,) = self.query(1)
        pool.search(text, K)
        for number in range(TIMES):
            other.put(self.told(experiences(1, 10**7 + number, self.options.places), made(1, 5000 + number)))
            self.query(1)
            self.timed(lambda: pool.search(text, K))

    def save(self) -> None:
        """Write a copy, as a checkpoint does."""
        pool = self.pool()
        self.timed(lambda: pool.store.copy_to(self.folder / "copy.sqlite"))

    def restore_same(self) -> None:
        """Go back to a copy that is the same."""
        pool = self.pool()
        self.timed(lambda: pool.store.restore(self.folder / "copy.sqlite", self.folder / "other.sqlite"))

    def restore(self) -> None:
        """Go back to a copy from which one counter differs."""
        pool = self.pool()
        pool.count({f"{0:032x}": Count(uses=1)})
        self.timed(lambda: pool.store.restore(self.folder / "copy.sqlite", self.folder / "aside.sqlite"))

    def export(self) -> None:
        """Write all as JSONL, in ReMe's format."""
        self.timed(lambda: command("export", self.folder / "pool.jsonl", "--store", self.folder / "pool.sqlite"))

    def newest(self) -> None:
        """List the newest 50."""
        self.timed(lambda: command("list", "--store", self.folder / "pool.sqlite"))

    def stats(self) -> None:
        """Sum up the pool."""
        self.timed(lambda: command("stats", "--store", self.folder / "pool.sqlite"))

    def prune(self) -> None:
        """Look for what is to be pruned, and find nothing."""
        pool = self.pool()
        self.timed(lambda: pool.store.prune("default", min_uses=16, min_utility=0.0, min_lift=-0.1))

    def query(self, count: int) -> list[str]:
        """Return texts whose vectors the encoder knows."""
        texts = [str(number) for number in range(count)]
        self.encoder.vectors |= dict(zip(texts, made(count, 2), strict=True))
        return texts


def command(*arguments: Any) -> None:
    """Run a command of the command line; raises RuntimeError if it fails."""
    from contextlib import redirect_stdout
    from io import StringIO

    from agentevolver.commands.experience_manager import main

    with redirect_stdout(StringIO()):
        if main([str(argument) for argument in arguments]) != 0:
            raise RuntimeError(f"{arguments[0]} failed")


ROWS = (
    *(
        "insert_all",
        "start",
        "search",
        "merge",
        "follow",
        "count",
        "save",
        "restore_same",
        "restore",
        "prune",
        "newest",
        "stats",
        "export",
    ),
)


def row(name: str, folder: Path, options: argparse.Namespace, answer: Any) -> None:
    """Measure one row in this process."""
    import faiss  # noqa: F401  the library's own memory is not the pool's

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = Work(folder, options)
    getattr(work, name)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.send((work.wall / work.times, work.cpu / work.times, (peak - before) / 1024))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--places", type=int, default=2000)
    parser.add_argument("--only", nargs="*", choices=ROWS, default=ROWS)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(
        f"{options.records:,} experiences, {options.places:,} places\n{'':<14} {'wall ms':>10} {'CPU ms':>10} "
        f"{'MiB more':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys(("insert_all", *options.only)):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=row, args=(name, Path(folder), options, theirs))
            process.start()
            theirs.close()
            wall, cpu, memory = mine.recv()
            process.join()
            print(f"{name:<14} {1000 * wall:>10,.1f} {1000 * cpu:>10,.1f} {memory:>9,.0f}", flush=True)
        size = (Path(folder) / "pool.sqlite").stat().st_size / 2**20
    print(f"file {size:,.0f} MiB")


if __name__ == "__main__":
    main()
