"""A small world without a service, a model that knows a few tricks in it, and an encoder without a model."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import ClassVar

from agentevolver.llm.errors import LLMReply, LLMReplyError
from agentevolver.llm.prompts import read_sections, read_steps, read_task
from agentevolver.llm.reply import NoAnswer, read_reply
from env_service.base import BaseEnv
from env_service.contract import created_with
from env_service.environments.pocket.env import PocketEnv
from env_service.protocol import EnvCrashed, EnvUnavailable
from task_manager.background import round_files
from task_manager.tasks import read_objectives


class Desk:
    """A world of notes, spoken to like PocketWorld but without its surprises: one episode of one task."""

    TAGS = ("home", "work", "fun", "new", "old")
    KNOWN: ClassVar = {
        "n2": ("soap", "work"),
        "n1": ("rug", "work"),
        "n9": ("pen", "work"),
        "n7": ("desk", "work"),
        "n4": ("tea", "new"),
    }
    THINGS = ("milk", "bread", "book", "lamp", "rice", "cake", "hat", "mug", "key", "map", "fan", "cup")

    def __init__(self, task_id, instance_id, params=None):
        params = dict(params or {})
        self.is_open = params.pop("is_open_query", False)
        self.steps_left = params.pop("explore_steps", 8)
        params.pop("verbose", None)
        params.pop("manual", None)
        assert not params, f"unknown parameters {params}"
        self.task_id = task_id
        self.notes = dict(self.KNOWN) if task_id == "note_add.k3.7" else self.drawn(task_id)
        self.sent = []
        self.answer = None
        self.steps = 0

    @classmethod
    def drawn(cls, task_id):
        rng = random.Random(task_id)
        things, ids = rng.sample(cls.THINGS, 5), rng.sample(range(1, 10), 5)
        return {f"n{i}": (thing, rng.choice(cls.TAGS)) for i, thing in zip(ids, things, strict=True)}

    @classmethod
    def query_of(cls, task_id):
        return f"file {task_id.replace('.', ' ')} somewhere"

    @staticmethod
    def get_query_list(split="train", params=None):
        return [f"{split}.k0.{i}" for i in range((params or {}).get("n", 12))]

    def get_init_state(self, params=None):
        query = "You have no task." if self.is_open else self.query_of(self.task_id)
        state = [
            {"role": "system", "content": f"You are at site {self.task_id.split('.')[1]}"},
            {"role": "user", "content": query},
        ]
        return {"state": state, "info": {"query": query}}

    def step(self, action):
        assert self.answer is None and self.steps_left > 0, "the episode is over"
        self.steps += 1
        self.steps_left -= 1
        said = self._carry_out(*action["content"].split())
        over = self.answer is not None or self.steps_left == 0
        info = {
            "refused": said.startswith("err"),
            "finished": self.answer is not None,
            "answer": self.answer,
            "stop_reason": ("finished" if self.answer is not None else "max_steps") if over else None,
        }
        return {"state": [{"role": "user", "content": said}], "reward": 0.0, "is_terminated": over, "info": info}

    def _carry_out(self, tool, *args):
        if tool == "done":
            self.answer = " ".join(args)
            return "bye"
        if tool == "note.list":
            return (
                " , ".join(f"{thing} {note}" for note, (thing, tag) in self.notes.items() if [tag] == list(args))
                or "none"
            )
        if tool == "note.tag" and len(args) == 2:
            if args[0] not in self.notes:
                return f"err no such id {args[0]}"
            self.notes[args[0]] = (self.notes[args[0]][0], args[1])
            return "ok"
        if tool == "mail.send":
            self.sent.append(" ".join(args))
            return "ok"
        return "none" if tool in ("shop.orders", "me.pin", "cal.list") else f"err no tool {tool}"

    def evaluate(self, messages=None, params=None):
        return 0.0

    def get_info(self, messages=None, params=None):
        if (params or {}).get("what") != "state":
            return {"tools": [{"type": "function", "function": {"name": "note.list"}}]}
        facts = {
            "note": {note: list(row) for note, row in self.notes.items()},
            "sent": {text: self.sent.count(text) for text in self.sent},
        }
        return {"facts": facts, "answer": self.answer, "finished": self.answer is not None, "exact": True}


class LocalDesk:
    """An environment client over instances in this process.

    `failures` names calls that fail, as (route, error) to be used up in order; `is_up` false makes all of them.
    """

    world = Desk

    def __init__(self):
        self.open = {}
        self.counts = Counter()
        self.failures = []
        self.is_up = True

    def _called(self, route):
        self.counts[route] += 1
        if not self.is_up:
            raise EnvUnavailable("nobody answers", url=route)
        for place, (wanted, error) in enumerate(self.failures):
            if wanted == route:
                del self.failures[place]
                raise error

    def _env(self, instance_id):
        if instance_id not in self.open:
            raise EnvCrashed("no such instance", instance_id=instance_id)
        return self.open[instance_id]

    async def get_env_profile(self, env_type, split="train", params=None):
        self._called("/get_env_profile")
        return self.world.get_query_list(split, params)

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        self._called("/create")
        env = self.world(
            task_id, instance_id, created_with(self.world, params) if issubclass(self.world, BaseEnv) else params
        )
        self.open[instance_id] = env
        return env.get_init_state()

    async def step(self, instance_id, action, params=None, step_index=None):
        self._called("/step")
        return self._env(instance_id).step(action)

    async def evaluate(self, instance_id, messages=None, params=None):
        self._called("/evaluate")
        return self._env(instance_id).evaluate(messages, params)

    async def get_tools_info(self, instance_id, messages=None, params=None):
        self._called("/get_info")
        return self._env(instance_id).get_info(messages, params)

    async def release_instance(self, instance_id):
        self.counts["/release"] += 1
        return self.open.pop(instance_id, None) is not None

    async def health(self):
        return self.is_up

    async def close(self):
        pass


class LocalPocket(LocalDesk):
    """The same client over the real PocketWorld."""

    world = PocketEnv


class Tutor:
    """Plays every role by simple rules; `says` replaces replies of a task by texts that are parsed as a model's would
    be."""

    def __init__(self, says=None):
        self.says = {task: list(texts) for task, texts in (says or {}).items()}
        self.prompts = []

    async def structured(self, role, messages, schema, **sampling):
        said = await self._said(role, messages, sampling)
        if isinstance(said, dict):
            return schema.model_validate(said)
        try:
            return read_reply(said, schema)
        except NoAnswer as error:
            raise LLMReplyError(str(error), said) from error

    async def chat(self, role, messages, tools=None, **sampling):
        said = await self._said(role, messages, sampling)
        if isinstance(said, LLMReply):
            return said
        return LLMReply(said["action"] if isinstance(said, dict) else said, 1, 1, 0.0, False)

    def context_limit(self, role):
        return None

    async def _said(self, role, messages, sampling):
        task = read_task(messages[0]["content"])
        assert task.split("/")[0] == role.value
        sections = read_sections(messages[1]["content"])
        self.prompts.append((task, sections, sampling))
        self.system = messages[0]["content"]
        if not self.says.get(task):
            return getattr(self, "_" + task.replace("/", "_"))(sections)
        said = self.says[task].pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def asked(self, task):
        return [sections for name, sections, _ in self.prompts if name == task]

    _LOOKS = (
        "note.list home",
        "shop.orders",
        "note.list work",
        "note.list fun",
        "note.list new",
        "note.list old",
        "me.pin",
        "cal.list mon",
    )

    def _explorer_act(self, sections):
        done = {step.action for step in read_steps(sections["transcript"])} | set(
            sections.get("tried", "").splitlines()
        )
        left = [action for action in self._LOOKS if action not in done]
        return {"thought": "look", "action": left[0] if left else "note.list home"}

    def _synthesiser_tasks(self, sections):
        tasks = []
        for step in read_steps(sections["transcript"]):
            tag = step.action.removeprefix("note.list ")
            if not step.action.startswith("note.list"):
                continue
            new = {"home": "work", "work": "fun", "fun": "new", "new": "old", "old": "home"}[tag]
            for thing, note in re.findall(r"([a-z]+) (n\d+)", step.observation):
                tasks.append(
                    {
                        "query": f"file {thing} under {new}",
                        "solution": [f"note.tag {note} {new}", "done"],
                        "confidence": 0.9,
                    }
                )
        return {"tasks": tasks}

    def _judge_accept(self, sections):
        wanted = re.findall(r"\w+", sections["task"])
        steps = read_steps(sections["transcript"])
        good = any(step.action.startswith("note.tag") and step.action.split()[-1] == wanted[-1] for step in steps)
        return {
            "reason": "the tag is the one that was asked for" if good else "another tag",
            "accepted": good,
            "confidence": 0.9,
        }

    def _judge_grade(self, sections):
        good = any(step.observation == "ok" for step in read_steps(sections["transcript"]))
        return {"reason": "something was done", "relevant": True, "achieved": good, "score": 90 if good else 10}


def all_synthetic_tasks(path):
    """Return the synthetic tasks of a file and of all rounds that were finished after it."""
    return [task for file in (path, *round_files(path)) if file.exists() for task in read_objectives(file)]
