"""Clusters of a batch of proposals: BLEU of all pairs by sparse matrices against BLEU one n-gram after the other.

    python benchmarks/repetition.py [--sizes 96 512 2048] [--plain 512] [--repeats 3] [--seed 0]

Four batches: `words`, problems of 20 to 40 words out of 3,000, a third of them near copies; `template`, the same story
with other names and numbers in a third of its places; `long`, the same with 150 words; `calc`, chains of 2 to 8
operands, eight to a seed, as the proposer of examples/agent0.yaml writes them. The plain way runs up to --plain texts,
since it is quadratic; both give the same distances, which is checked. Times are CPU seconds of one thread, the least of
--repeats; peak is what the process held at most so far.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402

from agentevolver.coevolve.repetition import distances, linked  # noqa: E402

T = TypeVar("T")
HEAD = "| batch | B | clusters | BLEU s | linkage s | plain BLEU s | plain / ours | peak MiB |"


def words_batch(rng: random.Random, size: int) -> list[str]:
    """Return problems of random words, a third of them copies of others with a word or two changed."""
    vocabulary = [f"word{i}" for i in range(3000)]
    texts: list[str] = []
    while len(texts) < size:
        text = rng.choices(vocabulary, k=rng.randint(20, 40))
        if texts and rng.random() < 1 / 3:
            text = rng.choice(texts).split()
            for _ in range(rng.randint(1, 2)):
                text[rng.randrange(len(text))] = rng.choice(vocabulary)
        texts.append(" ".join(text))
    return texts


def template_batch(rng: random.Random, size: int) -> list[str]:
    """Return one story with other names, things and numbers."""
    story = (
        "{} has {} {} and gives {} of them to {} . Every day {} more {} are bought for {} coins each . "
        "How many coins are spent after {} days , if {} of the {} are given back ?"
    )
    return [story.format(*(f"x{rng.randrange(60)}" for _ in range(story.count("{}")))) for _ in range(size)]


def calc_batch(rng: random.Random, size: int) -> list[str]:
    """Return chains, eight of them after each seed."""
    texts = []
    for i in range(size):
        if i % 8 == 0:
            seed = [rng.choice(("left", "right")), str(rng.randrange(10)), rng.choice("fghm")]
        chain = [*seed, str(rng.randrange(10))]
        for _ in range(rng.randint(0, 6)):
            chain += [rng.choice("fghm"), str(rng.randrange(10))]
        texts.append(" ".join(chain))
    return texts


def long_batch(rng: random.Random, size: int) -> list[str]:
    """Return stories four times as long."""
    parts = [template_batch(rng, size) for _ in range(4)]
    return [" ".join(four) for four in zip(*parts, strict=True)]


def plain(texts: Sequence[str]) -> list[float]:
    """Return 1 - BLEU of all pairs, written out."""
    tokens = [text.split() for text in texts]
    counts = [[Counter(zip(*(row[k:] for k in range(n)), strict=False)) for n in (1, 2, 3, 4)] for row in tokens]
    found = []
    for i, hypothesis in enumerate(tokens):
        for j in range(i + 1, len(texts)):
            logarithm = min(0.0, 1 - len(tokens[j]) / len(hypothesis))
            for n in range(4):
                known = counts[j][n]
                matched = sum(min(count, known[gram]) for gram, count in counts[i][n].items())
                if n == 0 and not matched:
                    logarithm = -math.inf
                    break
                logarithm += math.log((matched or 0.1) / max(len(hypothesis) - n, 1)) / 4
            found.append(1 - math.exp(logarithm))
    return found


def timed(function: Callable[[], T], repeats: int) -> tuple[T, float]:
    """Return what the function returns, and the least CPU seconds that it took."""
    seconds = math.inf
    for _ in range(repeats):
        began = time.process_time()
        result = function()
        seconds = min(seconds, time.process_time() - began)
    return result, seconds


def row(kind: str, texts: Sequence[str], plain_limit: int, repeats: int) -> str:
    """Return the table's line of one batch; raises SystemExit if the two ways disagree."""
    apart, bleu = timed(lambda: distances(texts), repeats)
    numbers, joined = timed(lambda: linked(apart), repeats)
    slow = "| - | - "
    if len(texts) <= plain_limit:
        wanted, seconds = timed(lambda: plain(texts), 1)
        if not np.allclose(apart, wanted, atol=1e-9):
            raise SystemExit(f"{kind}, {len(texts)} texts: the two ways do not give the same distances")
        slow = f"| {seconds:.2f} | {seconds / bleu:.0f} "
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return f"| {kind} | {len(texts):,} | {len(set(numbers)):,} | {bleu:.3f} | {joined:.3f} {slow}| {peak:.0f} |"


BATCHES = {"calc": calc_batch, "words": words_batch, "template": template_batch, "long": long_batch}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 512, 2048])
    parser.add_argument("--plain", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print(HEAD)
    print("|" + "---|" * (HEAD.count("|") - 1))
    for kind, make in BATCHES.items():
        for size in options.sizes:
            texts = make(random.Random(options.seed), size)
            print(row(kind, texts, options.plain, options.repeats), flush=True)


if __name__ == "__main__":
    main()
