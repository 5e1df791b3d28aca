"""The experience store at size: finding and inserting, beside numpy and beside a store in plain Python.

    python -m benchmarks.experience [--records 100000] [--searches 200] [--plain 100000]

Encoding is left out: the vectors (384 dimensions, clustered as texts are: cosine to their cluster's centre about 0.85)
are given. A search is what a task asks for: the ten nearest experiences, whole records, that hold in its place and were
not distilled from it. An insert is a transaction of 100 newcomers, half of them near-duplicates, each compared with all
others. numpy: one matrix product and a selection over vectors in memory; nothing is stored, nothing else is looked at.
Plain Python: cosines over lists of floats, one record after the other, as ReMe's own stores do. Times are wall-clock
medians, and CPU seconds of the process beside them; one compute thread.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from experience_manager.experience import Category, Experience  # noqa: E402
from experience_manager.index import Vectors, Where  # noqa: E402
from experience_manager.pool import Pool  # noqa: E402
from experience_manager.store import Hit, Store  # noqa: E402

DIMENSION = 384
CLUSTERS = 2000
NEWCOMERS = 100
K = 10
THRESHOLD = 0.85
WHERE = Where(context="You are at site k7, a small office.", not_from=("task 3",))


class Given:
    """An encoder that knows the vectors of its texts already."""

    name = "given"

    def __init__(self) -> None:
        self.vectors: dict[str, Vectors] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self.vectors[text] for text in texts])


def made(count: int, seed: int) -> Vectors:
    """Return (count, 384) unit vectors in clusters."""
    draw = np.random.default_rng(0)
    centres = _unit(draw.standard_normal((CLUSTERS, DIMENSION)))
    draw = np.random.default_rng(seed)
    noise = _unit(draw.standard_normal((count, DIMENSION)))
    return _unit(centres[draw.integers(0, CLUSTERS, count)] + 0.62 * noise)


def records(count: int, first: int = 0) -> list[Experience]:
    """Return experiences of the usual length, a fifth of them of one of 50 places."""
    advice = (
        "Read the tool's documentation before its first call, and look the id up by name instead of guessing it; "
        "then check the result."
    )
    return [
        Experience(
            f"When a task asks to change entry {i} of a list that was only described by its name",
            f"{advice} ({i})",
            scope=f"site k{i % 50}" if i % 5 == 0 else "",
            category=Category.SUCCESS,
            id=f"{i:032x}",
            task_ids=(f"task {i % 5000}",),
            trajectory_ids=(f"task {i % 5000}_{i}",),
        )
        for i in range(first, first + count)
    ]


def timed(action: Callable[[int], object], times: int) -> tuple[float, float]:
    """Return the median wall-clock seconds and the mean CPU seconds of calls."""
    walls, before = [], time.process_time()
    for number in range(times):
        started = time.perf_counter()
        action(number)
        walls.append(time.perf_counter() - started)
    return statistics.median(walls), (time.process_time() - before) / times


def filled(path: Path, count: int, encoder: Given) -> tuple[Store, Pool]:
    """Return a store of that many experiences."""
    store = Store(path)
    pool = Pool(store, encoder, threshold=THRESHOLD)
    vectors = made(count, 1)
    for start in range(0, count, 10_000):
        block = records(min(10_000, count - start), start)
        encoder.vectors = {
            e.embedded_text("when_to_use+content"): v for e, v in zip(block, vectors[start:], strict=False)
        }
        pool.put(block)
    return store, pool


def insert_into(pool: Pool, encoder: Given, count: int, times: int) -> Callable[[int], object]:
    """Return an insert of newcomers, made beforehand."""
    batches = [records(NEWCOMERS, count + NEWCOMERS * number) for number in range(times)]
    near = made(count, 1)[: NEWCOMERS // 2]
    for number, batch in enumerate(batches):
        texts = (e.embedded_text("when_to_use+content") for e in batch)
        encoder.vectors |= zip(texts, newcomer_vectors(near, number), strict=True)
    return lambda number: pool.add(batches[number])


def newcomer_vectors(standing: Vectors, number: int) -> Vectors:
    """Return (100, 384) unit vectors, every second one close to a standing one."""
    vectors = made(NEWCOMERS, 1000 + number)
    vectors[::2] = _unit(standing + 0.1 * vectors[::2])
    return vectors


def numpy_search(vectors: Vectors, query: Vectors) -> Vectors:
    """Return the nearest rows, best first."""
    cosines = vectors @ query
    best = np.argpartition(-cosines, K)[:K]
    return best[np.argsort(-cosines[best])]


def numpy_insert(vectors: Vectors, newcomers: Vectors) -> Vectors:
    """Return the rows with those newcomers that none of them is near to."""
    new = (newcomers @ vectors.T).max(axis=1) < THRESHOLD
    return np.concatenate([vectors, newcomers[new]])


def plain_search(rows: list[list[float]], query: list[float], k: int) -> list[int]:
    """Return the nearest rows, best first; cosines with their lengths, since such a store normalises nothing."""
    length = math.sqrt(sum(x * x for x in query))
    scored = []
    for number, row in enumerate(rows):
        dot = sum(x * y for x, y in zip(row, query, strict=True))
        scored.append((dot / (length * math.sqrt(sum(x * x for x in row))), number))
    scored.sort(reverse=True)
    return [number for _, number in scored[:k]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument(
        "--plain",
        type=int,
        default=100_000,
        help="records of the plain Python store; fewer are extrapolated and marked ~",
    )
    options = parser.parse_args()
    count, rows = options.records, []
    queries, vectors = made(options.searches, 2), made(count, 1)
    with tempfile.TemporaryDirectory() as folder:
        rows += store_rows(Path(folder) / "exact.sqlite", options, queries)
    rows.append(("numpy", "search", *timed(lambda i: numpy_search(vectors, queries[i]), options.searches)))
    newcomers = newcomer_vectors(vectors[: NEWCOMERS // 2], 0)
    rows.append(("numpy", f"insert of {NEWCOMERS}", *timed(lambda _: numpy_insert(vectors, newcomers), 5)))
    plain = vectors[: options.plain].tolist()
    factor, mark = count / len(plain), "" if len(plain) == count else "~"
    wall, cpu = timed(lambda i: plain_search(plain, queries[i].tolist(), K), 3)
    rows.append(("plain Python", f"search{mark}", wall * factor, cpu * factor))
    # One search for each newcomer; nobody waits for a hundred of them here.
    rows.append(("plain Python", f"insert of {NEWCOMERS}~", wall * factor * NEWCOMERS, cpu * factor * NEWCOMERS))
    print(f"{count:,} records, {DIMENSION} dimensions, k = {K}\n")
    print(f"{'store':<22} {'':<28} {'wall ms':>12} {'CPU ms':>12}")
    for store, what, wall, cpu in rows:
        print(f"{store:<22} {what:<28} {1000 * wall:>12,.1f} {1000 * cpu:>12,.1f}")


def store_rows(path: Path, options: argparse.Namespace, queries: Vectors) -> list[tuple[str, str, float, float]]:
    """Return the measurements of our store."""
    name, encoder = "ours", Given()
    store, pool = filled(path, options.records, encoder)
    stamp = store.stamp
    assert stamp is not None

    def search(number: int, where: Where = WHERE) -> list[Hit]:
        return store.search("default", queries[number], K, stamp, where)

    store.close()
    store = Store(path, create=False)
    pool = Pool(store, encoder, threshold=THRESHOLD)
    out = [(name, "first search (loads all)", *timed(search, 1))]
    out.append((name, "search", *timed(search, options.searches)))
    out.append((name, "search, any place", *timed(lambda i: search(i, Where()), options.searches)))
    out.append((name, f"insert of {NEWCOMERS}", *timed(insert_into(pool, encoder, options.records, 5), 5)))
    store.close()
    return out


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


if __name__ == "__main__":
    main()
