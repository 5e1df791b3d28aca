"""De-duplication of tasks: the joins against the pairwise loop, lexical and semantic.

    python benchmarks/dedup.py [--sizes 2000 20000 100000] [--embed 5000] [--threshold 0.8] [--cosine 0.9]

Queries are made of a grammar of everyday requests (some 10 to 25 words, names, amounts, days, things), 30 % of them
near copies of others. Lexical: the prefix-filter join against the loop over all kept ones; the loop runs up to
--pairwise tasks and is extrapolated beyond, since it is quadratic. The decisions of the two are compared wherever both
ran. Semantic: exact cosine over MiniLM vectors; --embed queries are really embedded, the others are theirs with noise
(cosine to the original 0.8 to 1), because embedding is not what is measured here. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The folder of this file holds a script that is named like a package.
ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]
# The joins over whole lists stand beside the tests that hold them to their definition.
sys.path.append(f"{ROOT}/tests/task_manager")

import numpy as np  # noqa: E402
from duplicates import lexical_duplicates, pairwise_duplicates, semantic_duplicates  # noqa: E402

from agentevolver.embeddings import MiniLM, Vectors  # noqa: E402

T = TypeVar("T")


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


NAMES = words(
    "Ann Bob Carla Dan Eve Fatima Gus Hal Ivy Joe Kim Lena Mo Nora Omar Pia Quinn Ravi Sue Tom Uma Vic Wei Xena Yuri "
    "Zoe"
)
THINGS = words(
    "milk bread tea coffee book pen lamp soap rice cake desk hat mug key map fan cup box bag rug jam phone charger "
    "jacket shoes ticket "
    "guitar album playlist note invoice receipt photo folder file report letter parcel gift plant bike helmet tent "
    "stove chair table mirror"
)
APPS = words("Amazon Spotify Venmo Gmail Todoist Splitwise phone calendar notes shop bank mail file-system drive")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
VERBS = words(
    "buy return order cancel delete move rename copy share archive pay request send forward reply schedule review "
    "rate download"
)
STARTS = (
    "please",
    "could you",
    "I need you to",
    "",
    "",
    "before tomorrow",
    "when you have a minute,",
    "help me:",
    "quickly",
)
PARTS = (
    "{verb} the {thing} that {name} asked for on {day}",
    "{verb} all my {thing} items in {app} older than {number} days",
    "find the cheapest {thing} under {number} dollars and {verb} it",
    "tell {name} that the {thing} costs {number} dollars",
    "{verb} the {thing} called {word}{number} in {app}",
    "how many {thing} entries did {name} add to {app} since {day}",
    "split the {number} dollars for the {thing} between {name} and {other}",
    "remind me on {day} at {hour} to {verb} the {thing} for {other}",
)
LINKS = (" and then ", ", but only if ", "; after that ", " while ", " unless ")
FREE = words(
    "blue old new summer winter work home family budget travel party school garden kitchen office team weekly monthly "
    "first second"
)


def query(rng: random.Random) -> str:
    """Return one request."""
    parts = [
        rng.choice(PARTS).format(
            verb=rng.choice(VERBS),
            thing=f"{rng.choice(FREE)} {rng.choice(THINGS)}",
            name=rng.choice(NAMES),
            other=rng.choice(NAMES),
            app=rng.choice(APPS),
            day=rng.choice(DAYS),
            number=rng.randint(2, 400),
            hour=rng.randint(7, 22),
            word=rng.choice(FREE),
        )
        for _ in range(rng.choice((1, 1, 2)))
    ]
    return f"{rng.choice(STARTS)} {rng.choice(LINKS).join(parts)}".strip()


def queries(n: int, seed: int = 0) -> list[str]:
    """Return n requests, 30 % of them copies with up to three words changed."""
    rng = random.Random(seed)
    made = [query(rng) for _ in range(max(1, 7 * n // 10))]
    while len(made) < n:
        text = made[rng.randrange(7 * n // 10)].split()
        for _ in range(rng.randint(0, 3)):
            text[rng.randrange(len(text))] = rng.choice((*FREE, *NAMES, *THINGS))
        made.append(" ".join(text))
    rng.shuffle(made)
    return made


def vectors(n: int, embedded: Vectors, seed: int = 0) -> Vectors:
    """Return n unit vectors: the embedded ones, then noisy ones of them."""
    rng = np.random.default_rng(seed)
    base = embedded[rng.integers(0, len(embedded), max(0, n - len(embedded)))]
    cosine = rng.uniform(0.8, 1.0, (len(base), 1)).astype(np.float32)
    noise = rng.standard_normal(base.shape).astype(np.float32)
    noise -= (noise * base).sum(axis=1, keepdims=True) * base
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    made = np.concatenate([embedded[:n], cosine * base + np.sqrt(1 - cosine**2) * noise])
    return np.ascontiguousarray(made[rng.permutation(len(made))], dtype=np.float32)


def timed(work: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """Return a result and the CPU seconds it took."""
    before = time.process_time()
    result = work(*arguments)
    return result, time.process_time() - before


def main() -> None:
    """Run and print one row a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 20_000, 100_000])
    parser.add_argument(
        "--pairwise", type=int, default=5_000, help="run the loop up to so many tasks, extrapolate beyond"
    )
    parser.add_argument(
        "--embed", type=int, default=5_000, help="queries that are really embedded; 0 leaves the semantic part out"
    )
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--cosine", type=float, default=0.9)
    parser.add_argument("--out", type=Path, help="write the rows there as JSON")
    options = parser.parse_args()
    embedded, embedding_s = (None, 0.0)
    if options.embed:
        embedded, embedding_s = timed(MiniLM().encode, queries(options.embed, seed=1))
        print(f"embedding {options.embed} queries: {embedding_s:.1f} s of CPU")
    print(
        f"{'tasks':>8} {'loop s':>12} {'join s':>8} {'kept':>8} {'same':>6} {'cosine s':>9} {'kept':>8} {'both s':>8}"
    )
    rows, loop_at = [], (0, 0.0)
    for n in options.sizes:
        texts = queries(n)
        joined, join_s = timed(lexical_duplicates, texts, options.threshold)
        same = ""
        if n <= options.pairwise:
            looped, loop_s = timed(pairwise_duplicates, texts, options.threshold)
            same = str([m and m.similarity for m in joined] == [m and m.similarity for m in looped])
            loop_at = (n, loop_s)
        loop_s = loop_at[1] * (n / loop_at[0]) ** 2 if loop_at[0] else float("nan")
        semantic_s, kept = 0.0, 0
        if embedded is not None:
            found, semantic_s = timed(semantic_duplicates, vectors(n, embedded), options.cosine)
            kept = sum(match is None for match in found)
        row = {
            "tasks": n,
            "loop_s": loop_s,
            "loop_extrapolated": n > options.pairwise,
            "join_s": join_s,
            "join_kept": sum(match is None for match in joined),
            "same": same,
            "cosine_s": semantic_s,
            "cosine_kept": kept,
        }
        rows.append(row)
        shown = f"{'~' if row['loop_extrapolated'] else ''}{loop_s:.1f}"
        print(
            f"{n:8} {shown:>12} {join_s:8.2f} {row['join_kept']:8} {same:>6} {semantic_s:9.2f} {kept:8} "
            f"{join_s + semantic_s:8.2f}"
        )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
