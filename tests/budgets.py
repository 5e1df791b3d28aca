"""Check the sizes of the project against the ceilings of budgets.toml: python tests/budgets.py

Prints every count with its ceiling and fails if one is above. A count that has shrunk by more than a twentieth lowers
its ceiling in the file to itself plus a twentieth. Raising a ceiling is an edit that its commit message defends.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

from pydantic import BaseModel
from rs_bpe.bpe import openai

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "budgets.toml"
RECIPES, ENVIRONMENTS = "agentevolver/recipes", "env_service/environments"
MANAGERS = ("task_manager", "experience_manager", "advantage_processor", "context_manager")
CORE = ("agentevolver", "env_service", *MANAGERS)
NEAR, SHRUNK, ROOM = 0.97, 0.95, 1.05

Budgets = dict[str, dict[str, float]]


def place(path: str) -> str | None:
    """Return the counted package that a file belongs to, or None, as for tests beside recipes and environments."""
    for folder in (RECIPES, ENVIRONMENTS):
        if path.startswith(f"{folder}/"):
            return folder if path.endswith(".py") and "tests" not in path.split("/") else None
    top = path.partition("/")[0]
    if top == "docs":
        return top if path.endswith(".md") else None
    return top if top in (*CORE, "tests") and path.endswith(".py") else None


def leaves(annotation: object) -> int:
    """Return the number of keys that a type of the settings stands for: one, or those of the models in it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sum(max(1, leaves(field.annotation)) for field in annotation.model_fields.values())
    return sum(map(leaves, typing.get_args(annotation)))


def counts() -> Budgets:
    """Return what budgets.toml limits, as it is in the working tree."""
    from agentevolver.config.recipes import RecipesSettings
    from agentevolver.config.schema import Settings

    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = sorted({path for path in listed if (ROOT / path).is_file()})
    bpe = openai.cl100k_base()
    tokens: dict[str, float] = dict.fromkeys((*CORE, RECIPES, ENVIRONMENTS, "docs", "tests"), 0)
    lines = dict(tokens)
    for path in paths:
        if package := place(path):
            text = (ROOT / path).read_text(encoding="utf-8")
            lines[package] += text.count("\n")
            if package != "tests":
                tokens[package] += bpe.count(text)
    del tokens["tests"]
    for sizes in (tokens, lines):
        sizes["core"] = sum(sizes[package] for package in CORE)
        sizes["product"] = sizes["core"] + sizes[RECIPES] + sizes[ENVIRONMENTS]
    entries = {path.split("/")[1] for path in paths if path.startswith("agentevolver/")}
    return {
        "tokens": tokens,
        "lines": {
            "core": lines["core"],
            "product": lines["product"],
            "trainer.py": (ROOT / "agentevolver/trainer/trainer.py").read_text().count("\n"),
        },
        "other": {
            "core_config_keys": leaves(Settings) - leaves(RecipesSettings),
            "test_lines_per_core_line": round(lines["tests"] / lines["core"], 3),
            "agentevolver_entries": sum("." not in name or name.endswith(".py") for name in entries - {"__init__.py"}),
        },
    }


def lowered(count: float, ceiling: float) -> float:
    """Return a ceiling, lowered if its count has shrunk below it. A count of 0 is a package that is still to come."""
    if not 0 < count < SHRUNK * ceiling:
        return ceiling
    return min(ceiling, math.ceil(count * ROOM) if isinstance(count, int) else round(count * ROOM, 3))


def written(text: str, ceilings: Budgets) -> str:
    """Return the file's text with these ceilings; comments stay."""
    table, made = "", []
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[] ")
        key, equals, rest = line.partition(" = ")
        if equals and not line.startswith("#"):
            _, hash_, comment = rest.partition("  #")
            line = f"{key} = {ceilings[table][key.strip(chr(34))]}{hash_}{comment}"
        made.append(line)
    return "\n".join(made) + "\n"


def main() -> int:
    """Print the table, lower ceilings, and return 1 if a count is above its ceiling."""
    text, found = FILE.read_text(), counts()
    ceilings: Budgets = tomllib.loads(text)
    named = {table: set(values) for table, values in found.items()}
    if named != {table: set(values) for table, values in ceilings.items()}:
        print(f"budgets.toml has to limit exactly {named}")
        return 1
    failed = False
    for table, values in found.items():
        for name, count in values.items():
            ceiling = ceilings[table][name]
            ceilings[table][name] = lowered(count, ceiling)
            mark = ""
            if count > ceiling:
                mark, failed = "ABOVE: shrink it, or raise the ceiling and say why in the commit message", True
            elif ceilings[table][name] < ceiling:
                mark = f"lowered to {ceilings[table][name]:,}"
            elif count > NEAR * ceiling:
                mark = "near"
            print(f"{table:7} {name:26} {count:>9,} of {ceiling:>9,}  {mark}".rstrip())
    if (after := written(text, ceilings)) != text:
        FILE.write_text(after)
        print("budgets.toml was rewritten with the lower ceilings; commit it")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
