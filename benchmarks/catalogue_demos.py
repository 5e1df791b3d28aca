"""Demonstrations for a tiny policy of the environment catalogue: `python benchmarks/catalogue_demos.py --out FOLDER`.

Two files, for the two policies of `benchmarks/catalogue_search.sh`. In `search.jsonl` the demonstrator searches for
each tool in words of its own, some of them poor, and looks again where the tool was not found. In `given.jsonl` it
calls what it needs of the 20 tools that it is given, and ends where they are not among them. Tasks are those of
PocketWorld's train seeds from 20,000 on, none of which a run trains on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

from env_service.environments.catalogue.env import CatalogueEnv  # noqa: E402
from env_service.environments.catalogue.prompts import LOAD, SEARCH  # noqa: E402
from env_service.environments.catalogue.worlds import MOST_TOOLS, PocketTask, pocket_tools  # noqa: E402
from env_service.environments.pocket.families import FAMILIES  # noqa: E402
from env_service.environments.pocket.quirks import TRAIN_SITES  # noqa: E402
from env_service.environments.pocket.tasks import make_task  # noqa: E402

PHRASES: dict[str, tuple[str, ...]] = {
    "me.pin": ("show your pin", "secret number"),
    "note.find": ("show notes about a thing", "notes", "find a thing"),
    "note.list": ("notes with a tag", "list tags", "list"),
    "note.add": ("write a note under a tag", "add a note", "add"),
    "note.tag": ("give a note another tag", "tag a note", "tag"),
    "note.del": ("delete a note", "remove note", "delete"),
    "cal.find": ("show meetings with a person", "meetings with", "meet"),
    "cal.list": ("show meetings of a day", "meetings on a day", "day"),
    "cal.add": ("plan a meeting", "add a meeting", "plan"),
    "cal.move": ("move a meeting to another day", "move meeting", "move"),
    "cal.del": ("cancel a meeting", "delete meeting", "cancel"),
    "mail.find": ("show mails from a person", "mails from", "mail"),
    "mail.send": ("send a person a mail", "send mail", "send"),
    "mail.del": ("delete a mail", "remove mail", "delete"),
    "bank.login": ("log in to the bank", "bank login", "login"),
    "bank.bal": ("show the balance of your account", "bank balance", "money"),
    "bank.pay": ("pay a person an amount", "pay somebody", "pay"),
    "shop.find": ("show a product and its price", "price of a product", "price"),
    "shop.buy": ("buy pieces of a product", "buy a product", "buy"),
    "shop.orders": ("show your orders", "my orders", "orders"),
    "shop.ret": ("return an order", "send order back", "return"),
}
"""Words to search for each tool with, better ones first."""

LEVELS = (2, 3)
FIRST_SEED = 20_000
GIVEN = {"syntax": "compact", "search": False, "preload": 20, "slack": 6}
SEARCHING = {"syntax": "compact", "slack": 6}


def draw(rng: random.Random) -> str:
    """Return the id of a task of few tools."""
    families = sorted(name for name, family in FAMILIES.items() if family.level in LEVELS)
    while True:
        name = f"{rng.choice(families)}.k{rng.choice(TRAIN_SITES)}.{FIRST_SEED + rng.randrange(30_000)}"
        if 1 <= len(pocket_tools(make_task(name))) <= MOST_TOOLS:
            return f"pocket.{name}"


def demonstrate(task_id: str, rng: random.Random, *, search: bool) -> list[str]:
    """Return the actions of one episode."""
    env = CatalogueEnv(task_id, "demonstration", SEARCHING if search else GIVEN)
    names = {tool.name_there: tool.name for tool in env._catalogue.tools if tool.source == "pocket"}
    actions: list[str] = []
    known = {tool.name_there for tool in env._loaded.values()} | {"doc", "done"}

    def say(text: str) -> Any:
        actions.append(text)
        return env.step({"role": "assistant", "content": text})

    task = env._world
    assert isinstance(task, PocketTask)
    for call in make_task(task_id.partition(".")[2]).solution:
        if call.tool not in known:
            if not search:
                say("done")
                return actions
            name = names[call.tool]
            for attempt in range(2):
                phrases = PHRASES[call.tool]
                phrase = phrases[0] if attempt else rng.choice(phrases)
                result = say(f"{SEARCH} {phrase}")
                if result["is_terminated"] or name in result["state"][0]["content"].split(" , "):
                    break
            if result["is_terminated"] or say(f"{LOAD} {name}")["is_terminated"]:
                return actions
            known.add(call.tool)
        arguments = [word.replace(".", "_") for word in call.args] if call.tool == "doc" else list(call.args)
        if say(" ".join([names.get(call.tool, call.tool), *arguments]))["is_terminated"]:
            return actions
    return actions


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("-n", type=int, default=1500, help="demonstrations of each policy")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, search in (("search", True), ("given", False)):
        rng = random.Random(f"catalogue-{name}")
        with (options.out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(options.n):
                task = draw(rng)
                file.write(json.dumps({"task_id": task, "actions": demonstrate(task, rng, search=search)}) + "\n")
        print(f"{options.out / name}.jsonl: {options.n} demonstrations")


if __name__ == "__main__":
    main()
