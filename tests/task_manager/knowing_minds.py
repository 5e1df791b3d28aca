"""All roles of self-questioning on gymnasium and mcp, played by rules, with wrong references planted among the right
ones.

A mind knows how its world works and reads nothing but the prompt: the map stands in the opening, the notes in the
observations. It keeps what it planted; `is_right` tells from the world itself, outside of any prompt, whether a
solution does what its query asks.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from agentevolver.llm.errors import Reply
from agentevolver.llm.prompts import StepText, read_sections, read_steps, read_task
from env_service.environments.gymnasium.env import GymnasiumEnv
from env_service.environments.gymnasium.toy_text import WORLDS

Json = dict[str, Any]


class Mind:
    """The language model of a run. `planted`: (world, query, solution) of each wrong reference; `asked`: prompts by
    name."""

    def __init__(self, seed: int = 0, plants: int = 2) -> None:
        self._rng = random.Random(seed)
        self._plants = plants
        self.planted: set[tuple[str, str, tuple[str, ...]]] = set()
        self.sorts: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    async def structured(self, role: Any, messages: list[Json], schema: Any, **sampling: Any) -> Any:
        return schema.model_validate(self._said(messages))

    async def chat(self, role: Any, messages: list[Json], tools: Any = None, **sampling: Any) -> Reply:
        return Reply(self._said(messages)["action"], 1, 1, 0.0, False)

    def context_limit(self, role: Any) -> None:
        return None

    def _said(self, messages: list[Json]) -> Json:
        task = read_task(messages[0]["content"])
        self.asked[task] += 1
        sections = read_sections(messages[1]["content"])
        steps = read_steps(sections.get("transcript", ""))
        play: dict[str, Callable[[], Json]] = {
            "explorer/act": lambda: {"thought": "I look.", "action": self.explore(sections["opening"], steps)},
            "synthesiser/tasks": lambda: {"tasks": self._tasks(sections, steps)},
            "judge/accept": lambda: self._verdict(sections, steps),
        }
        return play[task]()

    def _tasks(self, sections: Json, steps: Sequence[StepText]) -> list[Json]:
        goals = self.goals(sections["opening"], steps)
        self._rng.shuffle(goals)
        made = []
        for place, (query, solution) in enumerate(goals[: int(sections["count"])]):
            if place < self._plants:
                sort, solution = self.wrong(query, solution, sections["opening"], steps)
                self.sorts[sort] += 1
                self.planted.add((self.world_of(sections["opening"], steps), query, tuple(solution)))
            made.append({"query": query, "solution": solution, "confidence": 0.9})
        return made

    def _verdict(self, sections: Json, steps: Sequence[StepText]) -> Json:
        accepted = self.holds(sections["task"], sections["opening"], steps)
        return {
            "reason": "what was asked is compared with what the observations show",
            "accepted": accepted,
            "confidence": 0.9,
        }

    def is_planted(self, seed: str, query: str, solution: Sequence[str]) -> bool:
        """Whether a reference is one of those that were made wrong on purpose."""
        return (self.world_of_seed(seed), query, tuple(solution)) in self.planted

    def world_of(self, opening: str, steps: Sequence[StepText]) -> str:
        """Return what tells a world from others, by what a prompt shows."""
        raise NotImplementedError

    @staticmethod
    def world_of_seed(seed: str) -> str:
        """Return what tells the world of a seed task from others."""
        raise NotImplementedError

    def explore(self, opening: str, steps: Sequence[StepText]) -> str:
        raise NotImplementedError

    def goals(self, opening: str, steps: Sequence[StepText]) -> list[tuple[str, list[str]]]:
        raise NotImplementedError

    def wrong(self, query: str, solution: list[str], opening: str, steps: Sequence[StepText]) -> tuple[str, list[str]]:
        raise NotImplementedError

    def holds(self, query: str, opening: str, steps: Sequence[StepText]) -> bool:
        raise NotImplementedError


Square = tuple[int, int]
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_HERE = re.compile(r"You are A, at row (\d+), column (\d+)")
_SIGHT = re.compile(
    r"The taxi T is at row (\d+), column (\d+) .*? The passenger (?:waits at (\w)|is in the taxi).* The destination "
    r"is (\w)"
)
_STANDS: tuple[str, ...] = ("R", "G", "Y", "B")
_TAXI_ACTIONS = ("south", "north", "east", "west", "pick up", "drop off")
LAKE_KINDS = ("walk", "reach", "holes", "moves", "safe")
TAXI_KINDS = ("drive", "fetch", "deliver", "carry", "waits", "wants")


class GymnasiumMind(Mind):
    """Frozen lakes and taxis."""

    def world_of(self, opening: str, steps: Sequence[StepText]) -> str:
        found = _SIGHT.search(opening)
        return str(found.groups() if found is not None else _lake(opening))

    @staticmethod
    def world_of_seed(seed: str) -> str:
        env = GymnasiumEnv(seed, "truth", {"is_open_query": True})
        try:
            return GymnasiumMind().world_of(env.get_init_state()["state"][-1]["content"], [])
        finally:
            env.close()

    def explore(self, opening: str, steps: Sequence[StepText]) -> str:
        told = steps[-1].observation if steps else opening
        if (found := _HERE.search(told)) is not None:
            grid, _ = _lake(opening)
            here = int(found[1]), int(found[2])
            safe = [name for name in MOVES if _cell(grid, _moved(grid, here, name)) not in "HG"]
            return f"action: {self._rng.choice(safe)}"
        return f"action: {self._rng.choice(_TAXI_ACTIONS[:4])}"

    def goals(self, opening: str, steps: Sequence[StepText]) -> list[tuple[str, list[str]]]:
        return _lake_goals(opening) if "frozen lake" in opening else _taxi_goals(opening)

    def wrong(self, query: str, solution: list[str], opening: str, steps: Sequence[StepText]) -> tuple[str, list[str]]:
        last = solution[-1]
        if last.startswith("action: done "):
            answer = last.removeprefix("action: done ")
            other = str(int(answer) + 1) if answer.isdigit() else next(name for name in _STANDS if name != answer)
            return "another answer", [*solution[:-1], f"action: done {other}"]
        sort = ("one short", "no such action", "on behind the end", "another way")[self.sorts.total() % 4]
        acts = solution[:-1] if last == "action: done" else solution
        if sort == "no such action":
            return sort, ["action: jump", *solution]
        if sort == "on behind the end":
            return sort, ["action: done", *solution]
        if sort == "another way" and len(set(acts)) > 1:
            return sort, [*acts[: len(acts) // 2], "action: done"]
        return "one short", [*acts[:-1], "action: done"]

    def holds(self, query: str, opening: str, steps: Sequence[StepText]) -> bool:
        return any(_fits(query, opening, step.observation, step.action) for step in steps[-1:])

    @staticmethod
    def kind(query: str) -> str:
        """Return the kind of a query."""
        words = {
            "Walk": "walk",
            "Reach": "reach",
            "Drive": "drive",
            "Let": "fetch",
            "Bring": "deliver",
            "Carry": "carry",
        }
        asks = {"holes": "holes", "moves": "moves", "safe": "safe", "wait": "waits", "want": "wants"}
        return words.get(query.split()[0]) or next(kind for word, kind in asks.items() if word in query)

    @staticmethod
    def is_right(seed: str, query: str, solution: Sequence[str]) -> bool:
        """Whether a solution, carried out by the world itself, leaves it as the query asks and answers what it asks."""
        env = GymnasiumEnv(seed, "truth", {"is_open_query": True, "max_steps": len(solution) + 1})
        try:
            opening = env.get_init_state()["state"][-1]["content"]
            told, last = opening, ""
            for action in solution:
                result = env.step({"role": "assistant", "content": action})
                told, last = result["state"][-1]["content"], action
                if result["info"]["refused"] or result["is_terminated"]:
                    break
            return result["info"]["finished"] and _fits(query, opening, told, last)
        finally:
            env.close()


def _fits(query: str, opening: str, told: str, last: str) -> bool:
    answer = last.removeprefix("action: done").strip() if last.startswith("action: done") else ""
    wanted = {
        asked: solution[-1]
        for asked, solution in (_lake_goals(opening) if "You are A" in opening else _taxi_goals(opening))
    }.get(query)
    if wanted is not None and wanted.startswith("action: done "):
        return answer == wanted.removeprefix("action: done ")
    if answer:
        return False
    if (here := _HERE.search(told)) is not None:
        grid, _ = _lake(opening)
        square = int(here[1]), int(here[2])
        place = re.fullmatch(r"Walk to row (\d+), column (\d+)\.", query)
        return square == (int(place[1]), int(place[2])) if place else _cell(grid, square) == "G"
    if (seen := _SIGHT.search(told)) is None:
        return False
    taxi, passenger, wants = (int(seen[1]), int(seen[2])), seen[3], seen[4]
    if query.startswith("Let "):
        return passenger is None
    if query.startswith("Drive "):
        return taxi == _stand(query.split()[-1].rstrip(".")) and passenger is not None
    return passenger == (wants if query.startswith("Bring ") else query.split()[-1].rstrip("."))


def _lake(opening: str) -> tuple[list[list[str]], Square]:
    rows = [line.split() for line in opening.splitlines() if re.fullmatch(r"[SFHGA]( [SFHGA])+", line.strip())]
    found = _HERE.search(opening)
    assert found is not None and rows, f"the map is not in the opening: {opening[-300:]!r}"
    return rows, (int(found[1]), int(found[2]))


def _cell(grid: list[list[str]], square: Square) -> str:
    return grid[square[0]][square[1]]


def _moved(grid: list[list[str]], square: Square, name: str) -> Square:
    row, column = (here + by for here, by in zip(square, MOVES[name], strict=True))
    return (row, column) if 0 <= row < len(grid) and 0 <= column < len(grid[0]) else square


def _ways(grid: list[list[str]], start: Square) -> dict[Square, list[str]]:
    ways: dict[Square, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        square = queue.popleft()
        if _cell(grid, square) == "G":
            continue
        for name in MOVES:
            following = _moved(grid, square, name)
            if following not in ways and _cell(grid, following) != "H":
                ways[following] = [*ways[square], name]
                queue.append(following)
    return ways


def _lake_goals(opening: str) -> list[tuple[str, list[str]]]:
    grid, start = _lake(opening)
    ways = _ways(grid, start)
    cells = [cell for row in grid for cell in row]
    goal = next(square for square in ways if _cell(grid, square) == "G")
    walks = {square: way for square, way in ways.items() if len(way) >= 2 and square != goal}
    farthest = sorted(walks, key=lambda square: (len(walks[square]), square))[-3:]
    made = [
        (f"Walk to row {r}, column {c}.", [*(f"action: {name}" for name in walks[r, c]), "action: done"])
        for r, c in farthest
    ]
    made.append(("Reach the square with the G.", [f"action: {name}" for name in ways[goal]]))
    for query, answer in (
        ("How many holes does the lake have?", cells.count("H")),
        ("How few moves are enough to get to the goal?", len(ways[goal])),
        ("How many squares of safe ice are marked F at the start?", cells.count("F")),
    ):
        made.append((query, [f"action: done {answer}"]))
    return made


def _stand(name: str) -> Square:
    place: Square = {"R": (0, 0), "G": (0, 4), "Y": (4, 0), "B": (4, 3)}[name]
    return place


def _taxi_goals(opening: str) -> list[tuple[str, list[str]]]:
    seen = _SIGHT.search(opening)
    assert seen is not None, f"the streets are not in the opening: {opening[-300:]!r}"
    taxi, passenger, wants = (int(seen[1]), int(seen[2])), str(seen[3]), str(seen[4])
    fetch = [*_drive(taxi, _stand(passenger)), "pick up"]
    made = [("Let the passenger get in.", fetch, ""), ("At which stand does the passenger wait?", [], passenger)]
    made.append(("To which stand does the passenger want to go?", [], wants))
    made.append(
        (
            "Bring the passenger where they want to go.",
            [*fetch, *_drive(_stand(passenger), _stand(wants)), "drop off"],
            "",
        )
    )
    for name in _STANDS:
        if taxi != _stand(name):
            made.append((f"Drive the taxi without anybody in it to {name}.", _drive(taxi, _stand(name)), ""))
        if name not in (passenger, wants):
            made.append(
                (f"Carry the passenger to {name}.", [*fetch, *_drive(_stand(passenger), _stand(name)), "drop off"], "")
            )
    return [
        (
            query,
            [
                *(f"action: {name}" for name in acts),
                *([] if query.startswith("Bring") else [f"action: done {answer}".strip()]),
            ],
        )
        for query, acts, answer in made
    ]


def _drive(start: Square, end: Square) -> list[str]:
    """Return the shortest way of an empty taxi, from the world's own table."""
    env = next(world for world in WORLDS if world.env_id.startswith("Taxi")).make(0)
    table, inner = env.unwrapped.P, env.unwrapped
    first = inner.encode(*start, 4, 0)
    ways: dict[int, list[str]] = {first: []}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        if tuple(inner.decode(state))[:2] == end:
            env.close()
            return ways[state]
        for action, name in enumerate(_TAXI_ACTIONS[:4]):
            following = table[state][action][0][1]
            if following not in ways:
                ways[following] = [*ways[state], name]
                queue.append(following)
    raise AssertionError(f"there is no way from {start} to {end}")


NOTE_KINDS = ("write", "delete", "replace", "move", "read", "count", "search", "prune")
THINGS = ("milk", "bread", "soap", "rope", "lamp", "paint", "nails", "glue")
PLACES = ("shed", "attic", "cellar", "garage", "porch", "office", "hall", "loft")


def notes_of(number: int) -> dict[str, str]:
    """Return the notes of the world `number`."""
    rng = random.Random(f"notes-{number}")
    keys = rng.sample(PLACES, 4)
    return {key: f"{rng.choice(THINGS)} and {rng.choice(THINGS)} on shelf {rng.randint(1, 9)}" for key in keys}


def write_note_worlds(folder: Any, count: int) -> Any:
    """Write a configuration with `count` worlds of notes for the mcp environment; returns its path."""
    from env_service.environments.mcp_tools.config import EXAMPLE

    def task(number: int, split: str) -> Json:
        setup = [
            {"tool": "note_write", "arguments": {"key": key, "text": text}} for key, text in notes_of(number).items()
        ]
        question, check = f"What is in my {number} notes?", {"type": "exact", "answer": "nothing"}
        return {"id": f"notes.{number}", "split": split, "question": question, "setup": setup, "checks": [check]}

    tasks = [task(number, "train") for number in range(count)] + [task(count, "dev")]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "notes_server.py").write_text((EXAMPLE.parent / "notes_server.py").read_text())
    path = folder / "config.json"
    path.write_text(EXAMPLE.read_text())
    return path


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _called(action: str) -> tuple[str, Json] | None:
    found = re.search(r"<tool_call>(.*?)</tool_call>", action, re.DOTALL)
    return None if found is None else (lambda data: (data["name"], data["arguments"]))(json.loads(found[1]))


class NotesMind(Mind):
    """The notes server of the mcp environment."""

    def world_of(self, opening: str, steps: Sequence[StepText]) -> str:
        return str(sorted(_seen(steps).items()))

    @staticmethod
    def world_of_seed(seed: str) -> str:
        return str(sorted(notes_of(int(seed.removeprefix("notes."))).items()))

    def explore(self, opening: str, steps: Sequence[StepText]) -> str:
        if not steps:
            return call("note_list")
        keys = _lines(steps[0].observation)
        return call("note_read", key=keys[(len(steps) - 1) % len(keys)])

    def goals(self, opening: str, steps: Sequence[StepText]) -> list[tuple[str, list[str]]]:
        return _note_goals(_seen(steps))

    def wrong(self, query: str, solution: list[str], opening: str, steps: Sequence[StepText]) -> tuple[str, list[str]]:
        *acts, last = solution
        if last.startswith("Answer: "):
            answer = last.removeprefix("Answer: ")
            return "another answer", [
                *acts,
                f"Answer: {int(answer) + 1}" if answer.isdigit() else "Answer: a cup on shelf 3",
            ]
        sort = ("another text", "no such key", "too much", "one short")[self.sorts.total() % 4]
        name, arguments = _called(acts[-1]) or ("", {})
        if sort == "another text" and "text" in arguments:
            return sort, [*acts[:-1], call(name, **{**arguments, "text": arguments["text"] + " or so"}), last]
        if sort == "no such key":
            return sort, [call("note_delete", key="nowhere"), *solution]
        if sort == "one short" and len(acts) > 1:
            return sort, [*acts[:-1], last]
        return "too much", [*acts, call("note_write", key="extra", text="one more"), last]

    def holds(self, query: str, opening: str, steps: Sequence[StepText]) -> bool:
        """By the transcript: the calls that changed something are those that the query asks for, and the answer is what
        was read."""
        calls = [(_called(step.action), step) for step in steps]
        if any("Error" in step.observation for found, step in calls if found is not None):
            return False
        changes = [found for found, _ in calls if found is not None and found[0] in ("note_write", "note_delete")]
        reads = {json.dumps(found): step.observation for found, step in calls if found is not None}
        said = re.search(r"Answer: (.*)", steps[-1].action)
        wanted, answer = _wanted(query, reads)
        return changes == wanted and (said[1] if said else None) == answer

    @staticmethod
    def kind(query: str) -> str:
        """Return the kind of a query."""
        firsts = {
            "Note": "write",
            "Throw": "delete",
            "Let": "replace",
            "Rename": "move",
            "What": "read",
            "Clear": "prune",
        }
        return firsts.get(query.split()[0]) or ("search" if "mention" in query else "count")

    @staticmethod
    def is_right(seed: str, query: str, solution: Sequence[str]) -> bool:
        """Whether the notes that a solution leaves and the answer that it gives are what the query asks for in the
        world of a seed."""
        start = notes_of(int(seed.removeprefix("notes.")))
        right = next((actions for asked, actions in _note_goals(start) if asked == query), None)
        if right is None:
            return False
        answers = [re.search(r"Answer: (.*)", actions[-1]) for actions in (right, solution)]
        return _played(start, solution) == _played(start, right) and (answers[0] and answers[0][1]) == (
            answers[1] and answers[1][1]
        )


def _seen(steps: Sequence[StepText]) -> dict[str, str]:
    notes: dict[str, str] = {}
    for step in steps:
        found = _called(step.action)
        if found is not None and found[0] == "note_read" and "Error" not in step.observation:
            notes[found[1]["key"]] = _lines(step.observation)[0]
    return notes


def _note_goals(notes: dict[str, str]) -> list[tuple[str, list[str]]]:
    keys = sorted(notes)
    free = [place for place in PLACES if place not in notes]
    one, two = keys[0], keys[-1]
    thing = notes[one].split()[0]
    mentions = sum(thing in text for text in notes.values())
    done = "It is done."
    return [
        (f"Note under {free[0]}: paint the door.", [call("note_write", key=free[0], text="paint the door"), done]),
        (f"Throw the note {two} away.", [call("note_delete", key=two), done]),
        (f"Let the note {one} say: call Ana.", [call("note_write", key=one, text="call Ana", overwrite=True), done]),
        (
            f"Rename the note {two} to {free[1]}.",
            [
                call("note_read", key=two),
                call("note_delete", key=two),
                call("note_write", key=free[1], text=notes[two]),
                done,
            ],
        ),
        (f"What does the note {one} say?", [call("note_read", key=one), f"Answer: {notes[one]}"]),
        ("How many notes are there?", [call("note_list"), f"Answer: {len(notes)}"]),
        (f"How many notes mention {thing}?", [call("note_search", word=thing), f"Answer: {mentions}"]),
        (
            f"Clear {one} away and tell me how many notes are left.",
            [call("note_delete", key=one), call("note_list"), f"Answer: {len(notes) - 1}"],
        ),
    ]


def _wanted(query: str, reads: dict[str, str]) -> tuple[list[tuple[str, Json]], str | None]:
    """Return the changes that a query asks for, and the answer that observations give to it."""

    def read(name: str, **arguments: Any) -> str:
        return reads.get(json.dumps((name, arguments)), "")

    words = query.rstrip(".?").split()
    kind = NotesMind.kind(query)
    if kind == "write":
        return [("note_write", {"key": words[2].rstrip(":"), "text": query.partition(": ")[2].rstrip(".")})], None
    if kind == "delete":
        return [("note_delete", {"key": words[3]})], None
    if kind == "replace":
        return [
            ("note_write", {"key": words[3], "text": query.partition(": ")[2].rstrip("."), "overwrite": True})
        ], None
    if kind == "move":
        text = "\n".join(_lines(read("note_read", key=words[3])))
        return [("note_delete", {"key": words[3]}), ("note_write", {"key": words[5], "text": text})], None
    if kind == "read":
        return [], "\n".join(_lines(read("note_read", key=words[4])))
    if kind == "search":
        return [], str(len(_lines(read("note_search", word=words[4]))))
    count = str(len(_lines(read("note_list"))))
    return ([], count) if kind == "count" else ([("note_delete", {"key": words[1]})], count)


def _lines(observation: str) -> list[str]:
    told = re.sub(r"</?tool_response>", "", observation).strip()
    return [line for line in told.splitlines() if line.strip()]


def _played(start: dict[str, str], solution: Sequence[str]) -> dict[str, str] | None:
    notes = dict(start)
    for action in solution:
        found = _called(action)
        if found is None or found[0] not in ("note_write", "note_delete"):
            continue
        name, given = found
        if (given["key"] in notes) != (name == "note_delete" or bool(given.get("overwrite"))):
            return None
        if name == "note_delete":
            del notes[given["key"]]
        else:
            notes[given["key"]] = given["text"]
    return notes
