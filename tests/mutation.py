"""Measure how many mutants of a module its tests kill: python tests/mutation.py MODULE.py TEST... [-- PYTEST_OPTION...]

mutmut (`.venv/bin/pip install mutmut==3.8.1`) makes the mutants in a scratch copy of the checkout; a seeded sample of
them is tried, each by the given tests that reach its function. Mutants that change only a sentence in a string are left
out: a test that kills one pins its words. The survivors' diffs follow the rate. A test may go if the rate stays.

Tests have to pass twice in one process: leave one that cannot out (`-- --deselect TEST`). Slow tiers are left out
unless `-- -m EXPRESSION` chooses them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FAST = "not service and not thorough and not chaos and not e2e and not examples"
SURVIVED, UNREACHED = 0, 33


def copy_checkout(root: Path, scratch: Path) -> None:
    """Copy the files that git tracks."""
    tracked = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (root / name).is_file():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, scratch / name)


def configure(scratch: Path, module: str, tests: list[str], options: list[str]) -> None:
    """Add mutmut's section to the copy's pyproject.toml."""
    copied = sorted(path.name for path in scratch.iterdir() if path.name != "tests")
    section = {
        "source_paths": [module],
        "also_copy": copied,
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-p", "no:schemathesis", "-n", "0", *options],
        "timeout_multiplier": 5,
        "timeout_constant": 5,
    }
    with (scratch / "pyproject.toml").open("a") as project:
        project.write("\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items()))


class _Sentences(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node


def without_sentences(function: ast.AST) -> str:
    """Return a function's syntax tree without its name and the strings that hold a blank."""
    return "".join(ast.dump(_Sentences().visit(child)) for child in ast.iter_child_nodes(function))


def mutants(scratch: Path, module: str) -> list[str]:
    """Return the names of the mutants that mutmut makes of a module, those that change only a sentence left out."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    made = mutate_file_contents(module, (scratch / module).read_text())
    functions = {
        node.name: without_sentences(node)
        for node in ast.walk(ast.parse(made.code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name
    }
    kept = [name for name in made.mutant_names if functions[name] != functions[re.sub(r"\d+$", "orig", name)]]
    return [get_mutant_name(Path(module), name) for name in kept]


def mutmut(scratch: Path, *arguments: str) -> str:
    """Run mutmut in the scratch copy and return what it printed.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, "CI": "true", "PYTHONPATH": ""}  # CI: hypothesis draws the same cases each time
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments], cwd=scratch, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"mutmut {arguments[0]} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    """Print the kill rate and the survivors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", help="a file, as agentevolver/trainer/batch.py")
    parser.add_argument("tests", nargs="+", help="files or folders of tests")
    parser.add_argument("-n", "--number", type=int, default=40, help="mutants to try (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="name the survivors without their diffs")
    given = [*sys.argv[1:], "--"]
    own, options = given[: given.index("--")], given[given.index("--") + 1 : -1]
    asked = parser.parse_args(own)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        scratch = Path(folder)
        copy_checkout(Path.cwd(), scratch)
        configure(scratch, asked.module, asked.tests, ["-m", FAST, *options])
        os.chdir(scratch)  # mutmut reads its configuration from there
        names = mutants(scratch, asked.module)
        chosen = sorted(random.Random(asked.seed).sample(names, min(asked.number, len(names))))
        mutmut(scratch, "run", "--max-children", "1", *chosen)
        codes = json.loads((scratch / "mutants" / f"{asked.module}.meta").read_text())["exit_code_by_key"]
        alive = [name for name in chosen if codes[name] in (SURVIVED, UNREACHED)]
        killed = len(chosen) - len(alive)
        unreached = sum(codes[name] == UNREACHED for name in alive)
        print(
            f"{asked.module}: {killed} of {len(chosen)} mutants killed ({killed / max(1, len(chosen)):.0%}; "
            f"{len(names)} in all, seed {asked.seed}); {unreached} of the survivors are reached by no test"
        )
        for name in alive:
            reach = "" if codes[name] == SURVIVED else " (no test reaches it)"
            print(f"- {name}{reach}")
            if not asked.quiet:
                shown = mutmut(scratch, "show", name).splitlines()
                print("\n".join(f"    {line}" for line in shown if re.match(r"[-+](?![-+])", line)))


if __name__ == "__main__":
    main()
