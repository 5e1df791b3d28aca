"""Size of the packages: modules, lines, tokens, statements, and how their files import one another.

    python -m benchmarks.size [FOLDER]

FOLDER is a checkout, this one unless named; what git tracks in it is counted without tests. Tokens are Python's without
comments, new lines and indentation, statements are nodes of the syntax tree: neither depends on how wide the code is
set. Imports are between files, those of TYPE_CHECKING included.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import grimp

PACKAGES = (
    "agentevolver",
    "env_service",
    "task_manager",
    "experience_manager",
    "advantage_processor",
    "context_manager",
)
UNCOUNTED = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
SMALL_LINES, LARGE_LINES = 40, 400


def measured(text: str) -> Counter[str]:
    """Return counts of one file's text."""
    lines = text.count("\n")
    return Counter(
        modules=1,
        lines=lines,
        below_40_lines=int(lines < SMALL_LINES),
        above_400_lines=int(lines > LARGE_LINES),
        tokens=sum(token.type not in UNCOUNTED for token in tokenize.generate_tokens(io.StringIO(text).readline)),
        statements=sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text))),
    )


def imports(folder: Path) -> dict[str, dict[str, int]]:
    """Return what the files of each package import.

    `inside` counts imports of files of the same package, `outside` those of others; `one_importer` the files that one
    other imports.
    """
    sys.path.insert(0, str(folder))
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found = {package: Counter(inside=0, outside=0, one_importer=0) for package in PACKAGES}
    for module in graph.modules:
        package = module.partition(".")[0]
        for other in graph.find_modules_directly_imported_by(module):
            found[package]["inside" if other.partition(".")[0] == package else "outside"] += 1
        found[package]["one_importer"] += len(graph.find_modules_that_directly_import(module)) == 1
    return {package: dict(counts) for package, counts in found.items()}


def main() -> None:
    """Print the figures of a checkout as JSON, by package and in all."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    listed = subprocess.run(
        ["git", "ls-files", "launcher.py", *PACKAGES], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()
    sizes: dict[str, Counter[str]] = {}
    for name in (name for name in listed if name.endswith(".py")):
        counts = measured((folder / name).read_text(encoding="utf-8"))
        for group in (name.split("/")[0], "all"):
            sizes[group] = sizes.get(group, Counter()) + counts
    print(json.dumps({"size": sizes, "imports": imports(folder)}, indent=1))


if __name__ == "__main__":
    main()
