"""Check that prose or renames changed no logic: python tests/same_code.py [--messages] BASE [HEAD] [PATH...]

Compares the syntax trees of the Python files that differ between two commits; HEAD `.`, the default, is the working
tree. Docstrings, comments, layout and imports do not count. Renames are listed; those of variables must be one to one
within a function. `--messages` ignores strings with a blank too: errors, log lines, descriptions.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

MESSAGES = "--messages" in sys.argv


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def flat(node: Any, field: str = "", scope: int = 0) -> Iterator[tuple[str, Any, int]]:
    """Yield (field, value, line of the outermost function) of each leaf of a syntax tree, in order."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        scope = scope or node.lineno
    if isinstance(node, ast.JoinedStr) and MESSAGES:
        node.values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
    if MESSAGES and isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        yield "value", "a message", scope
    elif isinstance(node, ast.AST):
        yield "node", type(node).__name__, scope
        for name, value in ast.iter_fields(node):
            yield from flat(value, f"{type(node).__name__}.{name}", scope)
    elif isinstance(node, list):
        for item in node:
            is_text = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)  # a docstring or `...`
            if not is_text and not isinstance(item, ast.Pass | ast.Import | ast.ImportFrom):
                yield from flat(item, field, scope)
    else:
        yield field, node, scope


def compare(before: str, after: str) -> Iterator[tuple[bool, str]]:
    """Yield (is a rename, what differs), up to the first difference that is no rename."""
    forth: dict[Any, str] = {}
    back: dict[Any, str] = {}
    trees = [flat(ast.parse(text)) for text in (before, after)]
    for (field, old, scope), (_, new, _) in zip_longest(*trees, fillvalue=("", "the end", 0)):
        is_name = field.endswith((".id", ".arg", ".attr", ".name", ".names"))
        if is_name and old != new:
            yield True, f"{old} -> {new}"
        elif repr(old) != repr(new):
            yield False, f"{old!r} became {new!r}"
            return
        is_variable = field in ("Name.id", "arg.arg")
        if is_variable and (forth.setdefault((scope, old), new), back.setdefault((scope, new), old)) != (new, old):
            yield False, f"the variable {old} became {new} in some places only"


def main() -> int:
    """Print renames and differences; return 1 if there are differences."""
    given = [argument for argument in sys.argv[1:] if argument != "--messages"]
    base, head, paths = given[0], (given[1:2] or ["."])[0], given[2:]
    renames, wrong = set[str](), 0
    changed = git("diff", "-M40%", "--name-status", base, *([] if head == "." else [head]), "--", "*.py")
    for status, old, *moved in (line.split("\t") for line in changed.splitlines()):
        new = moved[0] if moved else old
        if paths and not new.startswith(tuple(paths)):
            continue
        before = "" if status == "A" else git("show", f"{base}:{old}")
        after = "" if status == "D" else Path(new).read_text() if head == "." else git("show", f"{head}:{new}")
        for is_rename, what in compare(before, after):
            if is_rename:
                renames.add(what)
            else:
                print(f"{new}: {what}")
                wrong += 1
    print(*sorted(renames), f"{wrong} differences", sep="\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
