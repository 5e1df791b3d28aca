"""Skeleton of a new environment: a package that runs and passes its own tests and `check`, to be changed."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from env_service.registry import known_environments

ENV = '''"""$title: the agent sees two words and says the last one. Replace this by your own task.

The seed policy knows these words, so a run on a CPU learns this environment. For other words build a policy first
(demos.py).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

WORDS = ("milk", "bread", "tea", "book", "pen", "lamp", "soap", "rice")
PAIRS = [f"{first}-{last}" for first in WORDS for last in WORDS if first != last]
# The pairs of dev are not in train, but their words are.
TASKS = {"train": [pair for pair in PAIRS if pair not in PAIRS[::5]], "dev": PAIRS[::5]}
TRIES = 3
HINT = "no word"


class ${cls}Env(BaseEnv):
    """One episode: two words, three tries, an answer after each."""

    # "shared": it only computes. Use "isolated" as soon as it runs an agent's code.
    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 5.0
    # With native_tools the model's chat template lists the result of `tools`.
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        """Raise ValueError if there is no such task."""
        super().__init__(task_id, instance_id, params)
        if task_id not in PAIRS:
            raise ValueError(f"no task {task_id!r}; get_env_profile lists them")
        self.shown = task_id.split("-")
        self.tries = 0
        self.solved = False

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Return the rules and the task; with `is_open_query` the agent explores without a task.

        A synthetic task replaces `query`.
        """
        goal = "explore" if (params or {}).get("is_open_query") else " ".join(self.shown)
        state: list[Message] = [
            {"role": "system", "content": "say the last word"},
            {"role": "user", "content": goal},
        ]
        return {"state": state, "info": {"query": goal}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Compare the word of each call, or of the text; anything else gets a hint, not an exception.

        `info` says whether the action was refused, and whether it ended the episode as intended.
        """
        if self.over:
            raise ValueError("the episode is over; create a new instance")
        if calls := structured_calls(action):
            state = [answer_to(call, self.answer(word_of(call))) for call in calls]
        else:
            said = [word for word in re.findall(r"[a-z]+", action["content"].lower()) if word in WORDS]
            state = [{"role": "user", "content": self.answer(said[0] if len(said) == 1 else None)}]
        info = {"refused": any(message["content"] == HINT for message in state), "finished": self.solved}
        return {"state": state, "reward": float(self.solved), "is_terminated": self.over, "info": info}

    @property
    def over(self) -> bool:
        """Whether the word was said, or the tries are used up."""
        return self.solved or self.tries >= TRIES

    def answer(self, word: str | None) -> str:
        """Return the answer to a try."""
        self.tries += 1
        self.solved |= word == self.shown[1]
        return "ok" if self.solved else HINT if word is None else "no"

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the tools, as OpenAI's chat API takes them."""
        word = {"type": "string", "enum": list(WORDS)}
        parameters = {"type": "object", "properties": {"word": word}, "required": ["word"]}
        say = {"name": "say", "description": "Say a word.", "parameters": parameters}
        return [{"type": "function", "function": say}]

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1 if the word was said."""
        return float(self.solved)

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return facts for an explorer, or the state: everything that a task may change."""
        if (params or {}).get("what") == "state":
            return {"facts": {"solved": self.solved}, "answer": None, "finished": self.solved, "exact": True}
        return {"words": list(WORDS), "tries": TRIES}

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of a split."""
        if split not in TASKS:
            raise ValueError(f"unknown split {split!r}; there are {', '.join(TASKS)}")
        return TASKS[split]


def word_of(call: ToolCall | BadCall) -> str | None:
    """Return the word of a call, or None."""
    word = call.arguments.get("word") if isinstance(call, ToolCall) and call.name == "say" else None
    return word if word in WORDS else None
'''

DEMOS = '''"""Demonstrations to build a tiny policy for this environment from: `python -m $name.demos` writes them.

Only an environment with other words needs its own policy. A demonstration shows the form of an answer: it says one of
the shown words at random. The policy learns the right word by reinforcement learning.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from $name.env import ${cls}Env

DEMONSTRATIONS = 2000


def demonstrate(task_id: str, rng: random.Random) -> list[str]:
    """Return the actions of an episode."""
    env, said = ${cls}Env(task_id, "demonstration"), list[str]()
    while not env.over:
        said.append(rng.choice(env.shown))
        env.step({"role": "assistant", "content": said[-1]})
    return said


def main() -> None:
    """Write demonstrations of training tasks only."""
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
  "background": "A partner who shows words and wants to hear the last one.",
  "entities": [
    {
      "name": "Word",
      "description": "A word that the partner shows.",
      "attrs": {"text": "one of milk, bread, tea, book, pen, lamp, soap, rice"},
      "opts": [{"name": "say", "description": "Say a word; hear ok or no."}]
    }
  ],
  "task_preference": {"num_entities": 1, "num_opts": 3, "relation_difficulty": 1}
}
"""

TESTS = '''"""The environment keeps the contract, and the last word wins."""

from __future__ import annotations

from env_service.checker import LocalProbe, run_checks
from $name.env import TASKS, ${cls}Env


def test_it_keeps_the_contract() -> None:
    problems = [finding for finding in run_checks(LocalProbe(${cls}Env), action="tea") if finding.problem]
    assert not problems, problems


def test_saying_the_last_word_wins_and_another_one_does_not() -> None:
    for task in TASKS["train"] + TASKS["dev"]:
        env = ${cls}Env(task, "test")
        first, last = task.split("-")
        assert env.step({"role": "assistant", "content": first})["state"][0]["content"] == "no"
        assert env.step({"role": "assistant", "content": f"I say {last}"})["info"]["finished"] and env.evaluate() == 1.0


def test_a_native_call_says_a_word_and_is_answered_under_its_id() -> None:
    env = ${cls}Env("milk-tea", "test", {"native_tools": True})
    call = {"id": "c1", "type": "function", "function": {"name": "say", "arguments": '{"word": "milk"}'}}
    result = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert result["state"] == [{"role": "tool", "content": "no", "tool_call_id": "c1", "name": "say"}]
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
    """Write the package `name` into `folder` and return its files; refuses to overwrite."""
    package, facts = new_package(name, folder)
    for file_name, template in FILES.items():
        (package / file_name).write_text(filled(template, facts), encoding="utf-8")
    return [package / file_name for file_name in FILES]


def new_package(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Create the folder of a package and return it with the values for templates; raises SkeletonError for a bad name
    or an existing folder."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.islower():
        raise SkeletonError(f"{name!r} cannot be a package name; use lower-case letters, digits and _")
    if name in sys.stdlib_module_names or name in known_environments():
        raise SkeletonError(f"{name!r} is already the name of a Python module or of an environment; choose another")
    package = folder / name
    if package.exists():
        raise SkeletonError(f"{package} exists; choose another name or remove it")
    package.mkdir(parents=True)
    cls = "".join(part.capitalize() for part in name.split("_"))
    return package, {"name": name, "cls": cls, "title": name.replace("_", " ").capitalize()}


def filled(template: str, facts: Mapping[str, str]) -> str:
    return Template(template).substitute(facts)
