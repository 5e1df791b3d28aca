"""The BFCL worlds: what can be asked of whichever of the simulated APIs an opening offers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from agentevolver.llm.prompts import StepText
from tests.llm.minds.families import WORDS, FamiliesWorld, Family, Slots, nothing
from tests.llm.minds.world import CallingWorld, Lesson, calling, response, same

_CITIES = ("Rivermist", "Stonebrook", "Maplecrest", "Silverpine", "Shadowridge", "Oakendale")
_STOCKS = ("AAPL", "GOOG", "MSFT", "TSLA", "AMZN")
_NAMES = {"Apple": "AAPL", "Google": "GOOG", "Tesla": "TSLA", "Microsoft": "MSFT", "Nvidia": "NVDA"}
_TYRES = {
    "front left": "frontLeftTirePressure",
    "rear right": "rearRightTirePressure",
    "front right": "frontRightTirePressure",
}


def _value(observations: Sequence[str], *path: str) -> str | None:
    try:
        value = json.loads(response(observations[-1]))
        for key in path:
            value = value[key]
    except (ValueError, LookupError, TypeError):
        return None
    return str(value)


def _length(observations: Sequence[str], key: str) -> str | None:
    try:
        return str(len(json.loads(response(observations[-1]))[key]))
    except (ValueError, LookupError, TypeError):
        return None


def _one(name: str, values: Sequence[str]) -> Callable[[random.Random], Slots]:
    return lambda rng: {name: rng.choice(list(values))}


def _word(name: str) -> Callable[[random.Random], Slots]:
    return lambda rng: {name: rng.choice(WORDS) + rng.choice(WORDS)}


def _text(rng: random.Random) -> Slots:
    return {"text": " ".join(rng.sample(WORDS, 2)), "name": rng.choice(WORDS) + rng.choice(WORDS)}


def _two(rng: random.Random) -> Slots:
    return {"a": str(rng.randint(2, 999)), "b": str(rng.randint(2, 999))}


def _three(rng: random.Random) -> Slots:
    return {"numbers": ", ".join(str(rng.randint(1, 500)) for _ in range(4))}


def _tool(name: str) -> str:
    return f'"name": "{name}"'


def _numbers(slots: Slots) -> list[int]:
    return [int(number) for number in slots["numbers"].split(", ")]


FAMILIES = (
    Family("folder", "Make a folder called {name} in the current one.", _word("name"),
           lambda s, o: [calling("mkdir", dir_name=s["name"])], changes=True, needs=_tool("mkdir")),
    Family("file", "Create an empty file {name}.txt here.", _word("name"),
           lambda s, o: [calling("touch", file_name=f"{s['name']}.txt")], changes=True, needs=_tool("touch")),
    Family("text", "Write the words '{text}' into a new file {name}.txt.", _text,
           lambda s, o: [calling("echo", content=s["text"], file_name=f"{s['name']}.txt")], changes=True,
               needs=_tool("echo")),
    Family("both", "Make a folder {name} and in it an empty file "
                   "{file}.md.", lambda rng: {**_word("name")(rng), **_word("file")(rng)},
           lambda s, o: [calling("mkdir", dir_name=s["name"]), calling("cd", folder=s["name"]),
                         calling("touch", file_name=f"{s['file']}.md")],
           changes=True, needs=_tool("mkdir")),
    Family("where", "In which folder am I?", nothing, lambda s, o: [calling("pwd")],
           lambda s, seen: _value(seen, "current_working_directory"), needs=_tool("pwd")),
    Family("navigation", "Set the navigation to {place} Street {number}.",
           lambda rng: {"place": rng.choice(WORDS).title(), "number": str(rng.randint(1, 99))},
           lambda s, o: [calling("set_navigation", destination=f"{s['place']} Street {s['number']}")], changes=True,
           needs=_tool("set_navigation")),
    Family("lights", "Switch the headlights "
                     "on.", nothing, lambda s, o: [calling("setHeadlights", mode="on")], changes=True,
           needs=_tool("setHeadlights")),
    Family("tyre", "What is the pressure of the {tyre} "
                   "tyre?", _one("tyre", list(_TYRES)), lambda s, o: [calling("check_tire_pressure")],
           lambda s, seen: _value(seen, _TYRES[s["tyre"]]), needs=_tool("check_tire_pressure")),
    Family("litres", "How many litres are {n} gallons?", lambda rng: {"n": str(rng.randint(2, 60))},
           lambda s, o: [calling("gallon_to_liter", gallon=int(s["n"]))], lambda s, seen: _value(seen, "liter"),
           needs=_tool("gallon_to_liter")),
    Family("zip", "What is the zip code of {city}?", _one("city", _CITIES),
           lambda s, o: [calling("get_zipcode_based_on_city", city=s["city"])],
           lambda s, seen: _value(seen, "zipcode"), needs=_tool("get_zipcode_based_on_city")),
    Family("watch", "Put {stock} on my "
                    "watchlist.", _one("stock", _STOCKS), lambda s, o: [calling("add_to_watchlist", stock=s["stock"])],
           changes=True, needs=_tool("add_to_watchlist")),
    Family("symbol", "What is the stock symbol of {company}?", _one("company", list(_NAMES)),
           lambda s, o: [calling("get_symbol_by_name", name=s["company"])], lambda s, seen: _value(seen, "symbol"),
           needs=_tool("get_symbol_by_name")),
    Family("price", "What does a share of {stock} cost?", _one("stock", _STOCKS),
           lambda s, o: [calling("get_stock_info", symbol=s["stock"])],
           lambda s, seen: _value(seen, "price"), needs=_tool("get_stock_info")),
    Family("fund", "Pay {n} dollars into my trading account.", lambda rng: {"n": str(rng.randint(10, 900))},
           lambda s, o: [calling("fund_account", amount=int(s["n"]))], changes=True, needs=_tool("fund_account")),
    Family("balance", "How much money is in my trading account?", nothing, lambda s, o: [calling("get_account_info")],
           lambda s, seen: _value(seen, "balance"), needs=_tool("get_account_info")),
    Family("airport", "Which airport is nearest to {city}?", _one("city", _CITIES),
           lambda s, o: [calling("get_nearest_airport_by_city", location=s["city"])], lambda s, seen: _value(seen,
               "nearest_airport"),
           needs=_tool("get_nearest_airport_by_city")),
    Family("exchange", "How many euros are {n} US dollars?", lambda rng: {"n": str(rng.randint(10, 900))},
           lambda s, o: [calling("compute_exchange_rate", base_currency="USD", target_currency="EUR",
               value=int(s["n"]))],
           lambda s, seen: _value(seen, "exchanged_value"), needs=_tool("compute_exchange_rate")),
    Family("contact", "Add {name} to my contacts.", lambda rng: {"name": rng.choice(WORDS).title() + rng.choice(WORDS)},
           lambda s, o: [calling("add_contact", user_name=s["name"])], changes=True, needs=_tool("add_contact")),
    Family("users", "How many users are in my workspace?", nothing, lambda s, o: [calling("list_users")],
           lambda s, seen: _length(seen, "user_list"), needs=_tool("list_users")),
    Family("following", "How many accounts do I follow?", nothing, lambda s, o: [calling("list_all_following")],
           lambda s, seen: _length(seen, "following_list"), needs=_tool("list_all_following")),
    Family("product", "What is {a} times {b}?", _two, lambda s, o: [calling("multiply", a=int(s["a"]), b=int(s["b"]))],
           lambda s, seen: _value(seen, "result"), needs=_tool("multiply")),
    Family("mean", "What is the mean of {numbers}?", _three, lambda s, o: [calling("mean", numbers=_numbers(s))],
           lambda s, seen: _value(seen, "result"), needs=_tool("mean")),
    Family("sum", "What is the sum of {numbers}?", _three, lambda s, o: [calling("sum_values", numbers=_numbers(s))],
           lambda s, seen: _value(seen, "result"), needs=_tool("sum_values")),
)  # fmt: skip


class BfclWorld(FamiliesWorld, CallingWorld):
    """One conversation's APIs."""

    env_type = "bfcl"
    families = FAMILIES
    reading = frozenset({
        "pwd", "check_tire_pressure", "gallon_to_liter", "get_zipcode_based_on_city", "get_symbol_by_name",
        "get_stock_info",
        "get_account_info", "get_nearest_airport_by_city", "compute_exchange_rate", "list_users",
        "list_all_following", "multiply", "mean",
        "sum_values",
    })  # fmt: skip
    lessons = (
        Lesson("when a request names one thing to be done",
               "Make the one call that does it, with the values of the request, and then answer without a call.",
               "Make the call several times, so that it surely happens."),
        Lesson("when a call answers with an error", "Read the error, change the arguments as it says, and call again.",
               "Ignore errors, because the call has worked all the same."),
        Lesson("when a file is to lie in a new "
               "folder", "Make the folder first, change into it, and then create the file there.",
               "Create the file first, the folder comes by itself."),
    )  # fmt: skip

    def recognises(self, opening: str) -> bool:
        return "<tool_call>" in opening and "note_list" not in opening

    def refused(self, step: StepText) -> bool:
        told = response(step.observation)
        return (
            told.startswith("Error during execution:") or told.startswith('{"error"') or "Malformed tool call" in told
        )

    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        from env_service.environments.bfcl.env import BfclEnv

        def carried_out(actions: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
            env = BfclEnv(seed_task_id, "truth", {"is_open_query": True, "max_steps_per_turn": 99})
            told = [env.step({"role": "assistant", "content": action})["state"][0]["content"] for action in actions]
            return env.snapshot(), told

        opening = BfclEnv(seed_task_id, "truth", {"is_open_query": True}).get_init_state()["state"][0]["content"]
        goal = self.goal_of(query, opening, [])
        if goal is None:
            return False
        wanted, told = carried_out(goal.actions)
        state, _ = carried_out([action for action in solution if self.answered(action) is None])
        if state != wanted or any(self.refused(StepText(0, "", observation)) for observation in told):
            return False
        answer = self.answer(goal, told) if goal.asks else None
        return not goal.asks or (answer is not None and same(self.answered(solution[-1]) or "", answer))


PLAYER = BfclWorld()
