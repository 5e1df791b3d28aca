"""Skeleton of a new environment: a package that runs, passes its own tests and `check`, and is meant to be changed."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from env_service.registry import known_environments

ENV = '''"""$title: the agent finds a number of two digits. Replace this by what your agent should learn."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

# The numbers of dev are none of those that are trained on; their digits are.
TASKS = {"train": range(0, 80), "dev": range(80, 100)}
HIGHEST = 99
TRIES = 4
HINT = "I need two digits"


class ${cls}Env(BaseEnv):
    """One episode: a secret number, a guess a step; the answer says of each digit whether it is right, or the secret \
one higher or lower."""

    # "shared" because it only computes; use "isolated" as soon as it executes what an agent wrote.
    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 5.0
    # `create` takes native_tools: the model's chat template then lists what `tools` returns.
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        """Raise ValueError if there is no such task."""
        super().__init__(task_id, instance_id, params)
        number = re.fullmatch(r"$name-(\\d+)", task_id)
        if number is None or not any(int(number[1]) in tasks for tasks in TASKS.values()):
            raise ValueError(f"no task {task_id!r}; get_env_profile lists them")
        self.secret = f"{int(number[1]) * 37 % (HIGHEST + 1):02d}"
        self.tries = 0
        self.found = False

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Say what the agent may do; with `is_open_query` it only looks around. `query` is what a task made by \
others replaces."""
        goal = "Look around." if (params or {}).get("is_open_query") else "Find my number of two digits."
        system = f"I say of each digit whether mine is higher, lower or the same. You have {TRIES} tries."
        if not self.params.get("native_tools"):
            system = f"Answer with two digits. {system}"
        return {"state": [{"role": "system", "content": system}, {"role": "user", "content": goal}], "info": \
{"query": goal}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Compare the number of each call, or the first one of the text; anything else gets a hint, not an exception.

        `info` says what the action did: whether it was refused, and whether it ended the episode as an agent should \
end it.
        """
        if self.over:
            raise ValueError("the episode is over; create a new instance")
        if calls := structured_calls(action):
            state = [answer_to(call, self.answer(number_of(call))) for call in calls]
        else:
            number = re.search(r"(?<!\\d)\\d{1,2}(?!\\d)", action["content"])
            state = [{"role": "user", "content": self.answer(int(number[0]) if number else None)}]
        info = {"refused": any(message["content"] == HINT for message in state), "finished": self.found}
        return {"state": state, "reward": float(self.found), "is_terminated": self.over, "info": info}

    @property
    def over(self) -> bool:
        """Whether the number was found, or the tries are used up."""
        return self.found or self.tries >= TRIES

    def answer(self, number: int | None) -> str:
        """Say what a guess is worth."""
        self.tries += 1
        if number is None:
            return HINT
        pairs = list(zip(f"{number:02d}", self.secret, strict=True))
        self.found |= all(mine == secret for mine, secret in pairs)
        return " ".join("same" if mine == secret else "higher" if secret > mine else "lower" for mine, secret in pairs)

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the tools, as OpenAI's chat API takes them."""
        number = {"type": "integer", "minimum": 0, "maximum": HIGHEST}
        parameters = {"type": "object", "properties": {"number": number}, "required": ["number"]}
        guess = {"name": "guess", "description": "Guess my number.", "parameters": parameters}
        return [{"type": "function", "function": guess}]

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1 if the number was found."""
        return float(self.found)

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return what an explorer may know, or the state: what tasks may change, so that two ends can be compared."""
        if (params or {}).get("what") == "state":
            return {"facts": {"found": self.found}, "answer": None, "finished": self.found, "exact": True}
        return {"highest": HIGHEST, "tries": TRIES}

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of a split."""
        if split not in TASKS:
            raise ValueError(f"unknown split {split!r}; there are {', '.join(TASKS)}")
        return [f"$name-{number}" for number in TASKS[split]]


def number_of(call: ToolCall | BadCall) -> int | None:
    """Return the number that a call guesses, None if it guesses none."""
    number = call.arguments.get("number") if isinstance(call, ToolCall) and call.name == "guess" else None
    return number if isinstance(number, int) and 0 <= number <= HIGHEST else None
'''

DEMOS = '''"""Demonstrations, which a tiny policy for this world is built from: `python -m $name.demos` writes \
demos.jsonl.

Each is what somebody did who knows the rules and is no master: every guess agrees with what was said, and is one of \
those at random. What is better the policy learns by reinforcement.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from $name.env import ${cls}Env

DEMONSTRATIONS = 4000


def demonstrate(task_id: str, rng: random.Random) -> list[str]:
    """Return what is said in an episode of a task."""
    env = ${cls}Env(task_id, "demonstration")
    bounds, said = [[0, 9], [0, 9]], []
    while not env.over:
        guess = [rng.randint(low, high) for low, high in bounds]
        said.append("".join(map(str, guess)))
        result = env.step({"role": "assistant", "content": said[-1]})
        for bound, digit, answer in zip(bounds, guess, result["state"][0]["content"].split(), strict=True):
            bound[0] = {"same": digit, "higher": digit + 1, "lower": bound[0]}[answer]
            bound[1] = {"same": digit, "higher": bound[1], "lower": digit - 1}[answer]
    return said


def main() -> None:
    """Write the demonstrations, of tasks that are trained on alone."""
    rng, tasks = random.Random(0), ${cls}Env.get_query_list("train")
    path = Path(__file__).with_name("demos.jsonl")
    with path.open("w", encoding="utf-8") as file:
        for _ in range(DEMONSTRATIONS):
            task_id = rng.choice(tasks)
            file.write(json.dumps({"task_id": task_id, "actions": demonstrate(task_id, rng)}) + "\\n")
    print(f"wrote {DEMONSTRATIONS} demonstrations to {path}")


if __name__ == "__main__":
    main()
'''

PROFILE = """{
  "name": "$title",
  "background": "A partner who thinks of a number and answers guesses with higher or lower.",
  "entities": [
    {
      "name": "Number",
      "description": "The number that the partner thinks of.",
      "attrs": {"value": "a whole number of two digits, from 00 to 99"},
      "opts": [{"name": "guess", "description": "Say a number; hear of each digit: higher, lower, same."}]
    }
  ],
  "task_preference": {"num_entities": 1, "num_opts": 5, "relation_difficulty": 1}
}
"""

TESTS = '''"""The environment keeps the contract, and a perfect player wins."""

from __future__ import annotations

from env_service.checker import run_checks
from env_service.checker import LocalProbe

from $name.env import ${cls}Env


def test_it_keeps_the_contract() -> None:
    problems = [finding for finding in run_checks(LocalProbe(${cls}Env), action="50") if finding.problem]
    assert not problems, problems


def test_halving_the_range_of_each_digit_finds_every_number() -> None:
    for task in ${cls}Env.get_query_list("train") + ${cls}Env.get_query_list("dev"):
        env, bounds = ${cls}Env(task, "test"), [[0, 9], [0, 9]]
        while not env.over:
            guess = [sum(bound) // 2 for bound in bounds]
            result = env.step({"role": "assistant", "content": "".join(map(str, guess))})
            for bound, digit, answer in zip(bounds, guess, result["state"][0]["content"].split(), strict=True):
                bound[0] = {"same": digit, "higher": digit + 1, "lower": bound[0]}[answer]
                bound[1] = {"same": digit, "higher": bound[1], "lower": digit - 1}[answer]
        assert env.evaluate() == 1.0


def test_a_native_call_is_a_guess_and_is_answered_under_its_id() -> None:
    env = ${cls}Env("$name-0", "test", {"native_tools": True})
    call = {"id": "c1", "type": "function", "function": {"name": "guess", "arguments": '{"number": 99}'}}
    result = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert result["state"] == [{"role": "tool", "content": "lower lower", "tool_call_id": "c1", "name": "guess"}]
'''

TRAIN = """# A first run on this environment: plain GRPO. The launcher wants --env-module $name=$name.env:${cls}Env \
beside this file.

trainer:
  project_name: $name
  experiment_name: first
  total_training_steps: 20
  test_freq: 10
  save_freq: 10

data:
  train_split: train
  val_splits: [dev]

env_service:
  env_type: $name
  env_url: http://127.0.0.1:8080
"""

FILES = {
    "__init__.py": '"""$title."""\n',
    "env.py": ENV,
    "demos.py": DEMOS,
    "profile.json": PROFILE,
    "test_env.py": TESTS,
    "train.yaml": TRAIN,
}


class SkeletonError(Exception):
    """The skeleton cannot be written; the message says why."""


def write_skeleton(name: str, folder: Path) -> list[Path]:
    """Write the package `name` into `folder` and return its files; refuses to overwrite anything."""
    package, facts = new_package(name, folder)
    for file_name, template in FILES.items():
        (package / file_name).write_text(filled(template, facts), encoding="utf-8")
    return [package / file_name for file_name in FILES]


def new_package(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Make the folder of the package `name` and return it with what templates are filled with; raises SkeletonError if
    that is no name, or the folder exists."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.islower():
        raise SkeletonError(f"{name!r} cannot be a package name; use lower-case letters, digits and _")
    if name in sys.stdlib_module_names or name in known_environments():
        raise SkeletonError(
            f"{name!r} is the name of a module of Python or of an environment that is there; choose another"
        )
    package = folder / name
    if package.exists():
        raise SkeletonError(f"{package} exists; choose another name or remove it")
    package.mkdir(parents=True)
    cls = "".join(part.capitalize() for part in name.split("_"))
    return package, {"name": name, "cls": cls, "title": name.replace("_", " ").capitalize()}


def filled(template: str, facts: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced."""
    return Template(template).substitute(facts)
