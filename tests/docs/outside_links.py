"""Outside links of README and documentation, asked whether they answer: `python tests/docs/outside_links.py`.

Only warns, a line a link, and ends with 0: a page that others move is no reason to refuse a change. Needs Python alone.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 15.0
AT_ONCE = 8
_LINK = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>")
_FENCE = re.compile(r"^\s*```")


@dataclass(frozen=True)
class Link:
    """A link and where it stands."""

    url: str
    page: Path
    line: int


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that people read."""
    found = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob(".github/**/*.md"), *root.glob("examples/*.md")]
    return sorted(found)


def links(page: Path) -> Iterator[Link]:
    """Yield the outside links of a page; what stands in blocks of code is no link."""
    code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            code = not code
        elif not code:
            for found in _LINK.finditer(line):
                yield Link(found[1] or found[2], page, number)


def problem(url: str) -> str:
    """Ask for a page; returns what is wrong with it, "" if it is there."""
    request = urllib.request.Request(url, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def warnings(found: Iterable[Link]) -> list[str]:
    """Return a line for each link that does not answer; each page is asked for once."""
    known = list(found)
    urls = list(dict.fromkeys(link.url.partition("#")[0] for link in known))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = dict(zip(urls, pool.map(problem, urls), strict=True))
    lines = []
    for link in known:
        if why := said[link.url.partition("#")[0]]:
            page = link.page.relative_to(ROOT) if link.page.is_relative_to(ROOT) else link.page
            in_workflow = "GITHUB_ACTIONS" in os.environ
            where = f"::warning file={page},line={link.line}::" if in_workflow else f"{page}:{link.line}: "
            lines.append(f"{where}{link.url}: {why}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the pages that are named, else all; returns 0 whatever was found."""
    given = [Path(item) for item in (sys.argv[1:] if arguments is None else arguments)]
    found = [link for page in given or pages() for link in links(page)]
    lines = warnings(found)
    print("\n".join([*lines, f"{len(found)} outside links, {len(lines)} of them do not answer"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
