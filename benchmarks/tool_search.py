"""Search in a catalogue of tools: recall on paraphrased queries, and how long a search takes.

    python benchmarks/tool_search.py [--tools 5000] [--misses]

`tool_search/queries.jsonl` has, for each of 226 tools, two queries written by hand: for BFCL's functions from a task's
question, for the others from a line about what they do, in other words. The tools are all of PocketWorld and random
ones of BFCL (125 that answers call), AppWorld (65) and MCP (15), drawn once, none left out. Recall is measured on
`query`; `earlier` is what the index has seen succeed in the rows "learnt". Only one tool counts as right, however many
others would serve as well. For the speed, tools beyond those that there are are random vectors.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402

from env_service.environments.catalogue.encoder import encoder_named  # noqa: E402
from env_service.environments.catalogue.index import best, scores  # noqa: E402
from env_service.environments.catalogue.tools import Catalogue, Vectors, load_catalogue, words  # noqa: E402

QUERIES = Path(__file__).with_name("tool_search") / "queries.jsonl"
AT = (1, 3, 5, 10, 20)


def read_queries(path: Path = QUERIES) -> list[tuple[str, str, str]]:
    """Return (tool, query, earlier query) of each line."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["tool"], row["query"], row["earlier"]) for row in rows]


def holds_name(query: str, tool: str) -> bool:
    """Whether a query holds a tool's name: as it is, or its words in their order, where it has two or more."""
    text = " ".join(re.findall(r"[a-z0-9]+", query.lower()))
    named = words(tool)
    return tool.lower() in query.lower() if " " not in named else f" {named} " in f" {text} "


def places_of(catalogue: Catalogue, tools: list[str]) -> list[int]:
    """Return the places of tools by name; ends the program, naming them, if some are not there."""
    places = {tool.name: place for place, tool in enumerate(catalogue.tools)}
    if missing := [tool for tool in tools if tool not in places]:
        sys.exit(
            f"{len(missing)} of the tools are not in this catalogue ({missing[0]}, ...): build it with every source"
        )
    return [places[tool] for tool in tools]


def recall(found: list[Vectors], wanted: list[int]) -> dict[int, float]:
    """Return the share of queries whose tool is among the first k, by k."""
    ranks = [int((row > row[place]).sum()) for row, place in zip(found, wanted, strict=True)]
    return {k: statistics.mean(rank < k for rank in ranks) for k in AT}


def speed(vectors: Vectors, count: int, query: Vectors, rounds: int = 300) -> tuple[float, float]:
    """Return median and 99th percentile, in ms, of a search among `count` tools for an encoded query."""
    rng = np.random.default_rng(0)
    more = rng.normal(size=(max(0, count - len(vectors)), vectors.shape[1])).astype(np.float32)
    more /= np.linalg.norm(more, axis=1, keepdims=True) + 1e-9
    table = np.concatenate([vectors, more])[:count]
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        best(scores(table, query), 5)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), sorted(times)[int(rounds * 0.99)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tools", type=int, default=5000, help="tools for the speed")
    parser.add_argument("--misses", action="store_true", help="show what was not among the first five")
    options = parser.parse_args()
    catalogue = load_catalogue()
    encode = encoder_named(catalogue.encoder).encode
    rows = read_queries()
    wanted = places_of(catalogue, [tool for tool, _, _ in rows])
    queries, earlier = encode([query for _, query, _ in rows]), encode([past for _, _, past in rows])
    print(f"{len(catalogue.tools)} tools, {catalogue.encoder}, {len(rows)} queries", end="; ")
    holding = [tool for tool, query, _ in rows if holds_name(query, tool)]
    print(f"{len(holding)} hold the tool's name {', '.join(holding)}".rstrip())
    plain = [scores(catalogue.vectors, query) for query in queries]
    learnt = [scores(catalogue.vectors, query, earlier, wanted) for query in queries]
    sources = [catalogue.tools[place].source.partition(":")[0] for place in wanted]
    print(f"{'recall at':28}", *(f"{k:>6}" for k in AT))
    for name, found in (("", plain), (", learnt", learnt)):
        for source in ("all", *sorted(set(sources))):
            chosen = [i for i, own in enumerate(sources) if source in ("all", own)]
            values = recall([found[i] for i in chosen], [wanted[i] for i in chosen])
            print(f"{f'{source} ({len(chosen)}){name}':28}", *(f"{values[k]:6.3f}" for k in AT))
    if options.misses:
        for (tool, query, _), row, place in zip(rows, plain, wanted, strict=True):
            if (row > row[place]).sum() >= 5:
                print(f"{tool} | {query} | {', '.join(catalogue.tools[i].name for i in best(row, 5))}")
    median, worst = speed(catalogue.vectors, options.tools, queries[0])
    print(f"a search among {options.tools} tools, query encoded: median {median:.2f} ms, p99 {worst:.2f} ms")
    fresh = [f"{query} please {number}" for number, (_, query, _) in enumerate(rows[:40])]
    times = []
    for query in fresh:
        started = time.perf_counter()
        encode([query])
        times.append((time.perf_counter() - started) * 1000)
    print(
        f"encoding a query that is not in the cache: median {statistics.median(times):.1f} ms, max {max(times):.1f} ms"
    )


if __name__ == "__main__":
    main()
