"""A catalogue of thousands of tools: the agent searches it, loads tools and calls them.

A task is one of PocketWorld or BFCL whose solution needs one to three tools, graded as in its own world.
`search_tools(query)` names the nearest tools, `load_tool(name)` shows one and makes it callable.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.action_format import tool_call
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.catalogue.encoder import encoder_named
from env_service.environments.catalogue.index import best, scores
from env_service.environments.catalogue.learned import Learned, learned_file
from env_service.environments.catalogue.prompts import (
    DOC,
    LOAD,
    OPEN_QUERY,
    SEARCH,
    always_there,
    compact_list,
    compact_usage,
    listed,
    system_prompt,
)
from env_service.environments.catalogue.tools import CatalogueTool, load_catalogue
from env_service.environments.catalogue.worlds import (
    WORLDS,
    ActionRefused,
    CatalogueWorld,
    PocketTask,
    bfcl_ids,
    make_world,
    pocket_ids,
)
from env_service.parameters import laid_over, read_flags
from env_service.tool_calls import (
    BadCall,
    ToolCall,
    after_thoughts,
    answer_to,
    structured_calls,
    tagged_calls,
    tool_responses,
)

MOST_CALLS = 64
_SYNTAXES = ("json", "compact")
_LONGEST_QUERY = 500


@dataclass(frozen=True, slots=True)
class CatalogueParams:
    """Parameters of `create`.

    - `native_tools`: calls come in `tool_calls`; a step's `info.tools` includes the loaded tools.
    - `is_open_query`: no task: explore the catalogue; not graded.
    - `search`: offer `search_tools` and `load_tool`; otherwise only the preloaded tools exist.
    - `preload`: number of tools, nearest to the request, that are loaded from the start.
    - `results`: number of tools in a search result.
    - `max_steps`: limit of calls; 0: the reference's calls, two for each of its tools, and `slack`.
    - `slack`: see `max_steps`.
    - `syntax`: json: calls in `<tool_call>` tags; compact: a line `TOOL WORDS`, for PocketWorld's tasks and policies
        that are too small for JSON.
    - `learn`: let successes of earlier episodes improve the search, and record this one's (`learned.py`).
    """

    native_tools: bool = False
    is_open_query: bool = False
    search: bool = True
    preload: int = 0
    results: int = 5
    max_steps: int = 0
    slack: int = 4
    syntax: str = "json"
    learn: bool = False


class CatalogueEnv(BaseEnv):
    """One request, to be solved with tools from the catalogue; see `CatalogueParams`. Task ids are `pocket.ID` and
    `bfcl.ID`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 60.0
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = laid_over(CatalogueParams(), params)
        self._catalogue = load_catalogue()
        self._by_name = self._catalogue.by_name()
        self._encoder = encoder_named(self._catalogue.encoder)
        self._world: CatalogueWorld = make_world(task_id)
        self._check()
        self._past = self._read_past()
        reference = self._world.solution()
        tools = {step.tool for step in reference}
        self._max_steps = self._settings.max_steps or len(reference) + 2 * len(tools) + self._settings.slack
        self._loaded: dict[str, CatalogueTool] = {}
        self._found_by: dict[str, str] = {}
        self._used: dict[str, str] = {}
        self._steps = self._searches = 0
        self._stop: str | None = None
        self._said: str | None = None
        if self._settings.preload:
            for tool in self._nearest(self._world.query, self._settings.preload):
                self._loaded[tool.name] = tool

    def _check(self) -> None:
        chosen = self._settings
        for name, value, most in (
            ("preload", chosen.preload, 128),
            ("max_steps", chosen.max_steps, 1000),
            ("slack", chosen.slack, 1000),
        ):
            if not 0 <= value <= most:
                raise ValueError(f"{name}={value} must be 0 to {most}")
        if not 1 <= chosen.results <= 50:
            raise ValueError(f"results={chosen.results} must be 1 to 50")
        if chosen.syntax not in _SYNTAXES:
            raise ValueError(f"syntax={chosen.syntax!r} must be one of {', '.join(_SYNTAXES)}")
        if self._is_compact and not isinstance(self._world, PocketTask):
            raise ValueError("syntax=compact has no way to write the arguments of BFCL's functions; leave it out")

    @property
    def _is_compact(self) -> bool:
        return self._settings.syntax == "compact" and not self._settings.native_tools

    def _read_past(self) -> list[tuple[str, str]]:
        if not self._settings.learn:
            return []
        learned = Learned(learned_file())
        try:
            return [(query, tool) for query, tool, _ in learned.pairs() if tool in self._by_name]
        finally:
            learned.close()

    def _nearest(self, query: str, k: int) -> list[CatalogueTool]:
        queries = [query, *(past for past, _ in self._past)]
        vectors = self._encoder.encode(queries)
        places = {name: place for place, name in enumerate(self._by_name)}
        found = scores(self._catalogue.vectors, vectors[0], vectors[1:], [places[tool] for _, tool in self._past])
        return [self._catalogue.tools[place] for place in best(found, k)]

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if laid_over(self._settings, params) != self._settings:
            raise ValueError("parameters of catalogue must be given when the instance is created")
        query = OPEN_QUERY if self._settings.is_open_query else self._world.query
        if self._is_compact:
            loaded = compact_list(self._loaded.values())
            system = f"{self._world.system}\n{loaded}" if loaded else self._world.system
        else:
            system = system_prompt(
                len(self._by_name),
                self._world.system,
                self.tools(),
                search=self._settings.search,
                native=self._settings.native_tools,
            )
        state: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": query}]
        facts = {"query": query, "world": self._world.source, "max_steps": self._max_steps}
        return {"state": state, "info": {"instance_id": self.instance_id, "task_id": self.task_id, **facts}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out the message's calls; one without a call is the answer and ends the episode."""
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); create a new instance")
        loaded = len(self._loaded)
        content = str(action.get("content") or "")
        refused: bool | str = False
        if self._is_compact:
            told, problem = self._compact(content)
            state: list[Message] = [{"role": "user", "content": told}]
            refused = told if problem else False
        else:
            state, refused = self._answered(action, content)
        if self._stop is not None and self._settings.learn and self.evaluate() == 1.0:
            self._learn()
        info: dict[str, Any] = {
            "steps": self._steps,
            "searches": self._searches,
            "refused": refused,
            "finished": self._stop == "finished",
            "answer": self._said if self._stop == "finished" else None,
            "stop_reason": self._stop,
        }
        if self._settings.native_tools and len(self._loaded) != loaded:
            info["tools"] = self.tools()
        is_over = self._stop is not None
        return {"state": state, "reward": self.evaluate() if is_over else 0.0, "is_terminated": is_over, "info": info}

    def _answered(self, action: Message, content: str) -> tuple[list[Message], bool | str]:
        """Carry out calls in JSON; returns the observation, and the refusal or whether one was refused."""
        is_native = self._settings.native_tools
        calls = structured_calls(action) or ([] if is_native else tagged_calls(after_thoughts(content)))
        if not calls:
            self._finish(_answer_of(content))
            return [{"role": "user", "content": "The task is closed."}], False
        told: list[str] = []
        refused: bool | str = False
        for number, call in enumerate(calls):
            text, problem = "Not carried out: the episode is over.", True
            if number >= MOST_CALLS:
                text = f"Not carried out: a message may hold {MOST_CALLS} calls."
            elif self._stop is None:
                text, problem = self._take(call)
            told.append(text)
            refused = refused or (text if problem else False)
        if structured_calls(action):
            return [answer_to(call, text) for call, text in zip(calls, told, strict=True)], refused
        return [{"role": "user", "content": tool_responses(told)}], refused

    def _take(self, call: ToolCall | BadCall) -> tuple[str, bool]:
        """Carry out one call as a step; returns the answer, and whether it was refused."""
        try:
            told, problem = self._carry_out(call), False
        except ActionRefused as error:
            told, problem = str(error), True
        self._count()
        return told, problem

    def _count(self) -> None:
        self._steps += 1
        if self._stop is None and self._steps >= self._max_steps:
            self._stop = "max_steps"

    def _carry_out(self, call: ToolCall | BadCall) -> str:
        if isinstance(call, BadCall):
            raise ActionRefused(f"Error: {call.reason}.")
        if call.name == SEARCH and self._settings.search:
            return json.dumps(listed(self._search(_text_argument(call, "query"))), ensure_ascii=False)
        if call.name == LOAD and self._settings.search:
            tool = self._load(_text_argument(call, "name"))
            return json.dumps(tool.schema()["function"], ensure_ascii=False)
        tool = self._callable(call.name)
        told = self._world.call(tool, call.arguments)
        self._note_use(tool)
        return told

    def _compact(self, content: str) -> tuple[str, bool]:
        """Carry out the first line of a text; returns the answer, and whether it was refused."""
        lines = [line for line in content.rpartition("</think>")[2].splitlines() if line.strip()]
        verb, *rest = lines[0].strip("` ").split() if lines else [""]
        try:
            if verb == "done":
                self._finish(" ".join(rest))
                return "bye", False
            told, problem = self._line(verb, rest), False
        except ActionRefused as error:
            told, problem = str(error), True
        self._count()
        return told, problem

    def _line(self, verb: str, rest: list[str]) -> str:
        if verb == SEARCH and self._settings.search:
            return " , ".join(tool.name for tool in self._search(" ".join(rest)))
        if verb == LOAD and self._settings.search:
            return compact_usage(self._load(" ".join(rest)))
        tool = self._callable(verb)
        assert isinstance(self._world, PocketTask)
        words = tuple(word.replace("_", ".") if tool.name == DOC.name else word for word in rest)
        told = self._world.call_compact(tool.name_there, words)
        self._note_use(tool)
        return told

    def _search(self, query: str) -> list[CatalogueTool]:
        if not query.strip() or len(query) > _LONGEST_QUERY:
            raise ActionRefused(f"Error: {SEARCH} wants a query of 1 to {_LONGEST_QUERY} characters.")
        self._searches += 1
        found = self._nearest(query, self._settings.results)
        for tool in found:
            self._found_by[tool.name] = query
        return found

    def _load(self, name: str) -> CatalogueTool:
        if name not in self._by_name:
            near = difflib.get_close_matches(name[:64], self._by_name, 1)
            raise ActionRefused(
                f"Error: there is no tool {name[:64]!r}" + (f"; did you mean {near[0]}?" if near else ".")
            )
        self._loaded[name] = self._by_name[name]
        return self._by_name[name]

    def _callable(self, name: str) -> CatalogueTool:
        """Return a loaded tool of this task's world; raises ActionRefused."""
        if self._world.source == "pocket" and name == DOC.name:
            return DOC
        tool = self._loaded.get(name)
        if tool is None:
            known = f": call {LOAD} first" if name in self._by_name else f"; try {SEARCH}"
            raise ActionRefused(f"Error: the tool {name[:64]!r} is not loaded{known if self._settings.search else ''}.")
        if tool.source != self._world.source:
            raise ActionRefused(f"Error: {tool.name} is not connected here: it does not serve this request.")
        return tool

    def _note_use(self, tool: CatalogueTool) -> None:
        if tool.name in self._found_by:
            self._used[tool.name] = self._found_by[tool.name]

    def _finish(self, answer: str) -> None:
        self._world.finish(answer)
        self._stop, self._said = "finished", answer

    def _learn(self) -> None:
        learned = Learned(learned_file())
        try:
            learned.add((query, tool) for tool, query in self._used.items())
        finally:
            learned.close()

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade by the task's world: 0 or 1, with `sparse` false the share that is right; 0 for an open query."""
        sparse = read_flags(params, {"sparse": True})["sparse"]
        return 0.0 if self._settings.is_open_query else self._world.evaluate(sparse=sparse)

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        asked = dict(params or {})
        what = asked.pop("what", "tools")
        if asked or what not in ("tools", "state"):
            raise ValueError(f"get_info of catalogue understands what=tools|state; got {params!r}")
        if what == "state":
            facts = {"world": self._world.facts(), "loaded": dict.fromkeys(sorted(self._loaded), True)}
            is_finished = self._stop == "finished"
            return {"facts": facts, "answer": self._said, "finished": is_finished, "exact": True}
        return {"tools": self.tools()}

    def reference_actions(self) -> list[str] | None:
        """Return the reference, with a search by name and a load before each tool's first call."""
        if self._steps or self._stop or self._settings.is_open_query:
            return None
        there = {(tool.source, tool.name_there): tool.name for tool in self._by_name.values()}
        loaded, calls, answer = set(self._loaded), list[tuple[str, dict[str, Any]]](), self._world.answer()
        for step in self._world.solution():
            name = there.get((self._world.source, step.tool), step.tool)
            if self._settings.search and name in self._by_name and name not in loaded:
                calls += [(SEARCH, {"query": name.replace("_", " ")}), (LOAD, {"name": name})]
                loaded.add(name)
            calls.append((name, dict(step.arguments)))
        if self._is_compact:
            return [*(" ".join((name, *map(str, given.values()))) for name, given in calls), f"done {answer}".strip()]
        return [*(tool_call(name, given) for name, given in calls), f"Answer: {answer}" if answer else "Done."]

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        base = always_there(search=self._settings.search, doc=self._world.source == "pocket")
        return [*base, *(tool.schema() for tool in self._loaded.values())]

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev or test, by `worlds` (["pocket", "bfcl"]), `levels` of PocketWorld ([] for
        all), `n` of each world (0 for all). Raises ValueError, CatalogueNotBuilt."""
        asked: dict[str, Any] = {"worlds": list(WORLDS), "levels": [], "n": 0}
        if unknown := sorted(set(params or {}) - set(asked)):
            raise ValueError(f"unknown parameter {unknown[0]!r} of the catalogue's tasks; known: {', '.join(asked)}")
        worlds, levels, n = {**asked, **(params or {})}.values()
        if split not in ("train", "dev", "test"):
            raise ValueError(f"unknown split {split!r}; catalogue has: train, dev, test")
        if not isinstance(worlds, list) or not worlds or not all(world in WORLDS for world in worlds):
            raise ValueError(f"worlds={worlds!r} must be a list with some of: {', '.join(WORLDS)}")
        if not isinstance(levels, list) or not all(type(level) is int and 1 <= level <= 4 for level in levels):
            raise ValueError(f"levels={levels!r} must be a list of whole numbers from 1 to 4")
        if type(n) is not int or n < 0:
            raise ValueError(f"n={n!r} must be a whole number, 0 or more")
        tools = load_catalogue().by_name()
        found: list[str] = []
        if "pocket" in worlds:
            found += pocket_ids(split, tuple(levels), n or None)
        if "bfcl" in worlds:
            found += bfcl_ids(split, tools, n or None)
        return found


def _text_argument(call: ToolCall, name: str) -> str:
    value = call.arguments.get(name)
    if set(call.arguments) != {name} or not isinstance(value, str):
        raise ActionRefused(f"Error: {call.name} takes one text, `{name}`.")
    return value


def _answer_of(content: str) -> str:
    said = content.rpartition("</think>")[2]
    _, mark, answer = said.rpartition("Answer:")
    return answer.strip() if mark else ""
