"""WebShop as an environment: one message, one `search[...]` or `click[...]` in a shop, until something is bought.

Data is the user's (`products.py`), or a synthetic shop of 1,000 products.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.webshop.products import Product, load_shop
from env_service.environments.webshop.reward import reward
from env_service.environments.webshop.search import Index
from env_service.parameters import laid_over, read_flags

PAGE, MOST_RESULTS = 10, 50
BUY, BACK, NEXT, PREVIOUS = "buy now", "back to search", "next >", "< prev"
TEXTS = ("description", "features", "attributes")
_ACTION = re.compile(r"\b(search|click)\[([^\]\n]*)\]", re.IGNORECASE)
_LONGEST = 300
_FORM = "Write search[WORDS] on the search page, or click[BUTTON] with a button of the page."

_RULES = """You shop in a web shop. Find a product that fits the instruction, choose its options, and buy it. End each \
message with one action: search[WORDS] on the search page, or click[BUTTON] with the text of a button of the page, \
written in [brackets]. `click[buy now]` on a product's page buys it and ends the task."""
_OPEN_GOAL = "There is no instruction. Find out what the shop has. Buying something ends the episode."


@dataclass(frozen=True, slots=True)
class WebshopParams:
    """- `is_open_query`: the shop without an instruction; not graded.
    - `max_steps`: actions that an episode may take.
    """

    is_open_query: bool = False
    max_steps: int = 15


@cache
def _index() -> Index:
    return Index(product.text() for product in load_shop().products.values())


class WebshopEnv(BaseEnv):
    """One request; its id is that of the goal, `ASIN.NUMBER`. See `WebshopParams`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 120.0
    explore_steps: ClassVar[str] = "max_steps"

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = laid_over(WebshopParams(), params)
        if not 1 <= self._settings.max_steps <= 1000:
            raise ValueError(f"max_steps={self._settings.max_steps} must be 1 to 1000")
        self._shop = load_shop()
        if task_id not in self._shop.goals:
            raise ValueError(f"webshop has no request {task_id[:80]!r}; get_env_profile lists them")
        self._goal = self._shop.goals[task_id]
        self._asins = list(self._shop.products)
        self._results: list[str] = []
        self._page = 0
        self._product: Product | None = None
        self._text: str | None = None
        self._chosen: dict[str, str] = {}
        self._bought: Product | None = None
        self._steps = 0
        self._stop: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if laid_over(self._settings, params) != self._settings:
            raise ValueError("parameters of webshop must be given when the instance is created")
        goal = _OPEN_GOAL if self._settings.is_open_query else self._goal.instruction
        system = f"{_RULES} You have {self._settings.max_steps} actions."
        state: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Instruction: {goal}\n\n{self._shown()}"},
        ]
        return {"state": state, "info": {"instance_id": self.instance_id, "task_id": self.task_id, "query": goal}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); create a new instance")
        self._steps += 1
        found = _ACTION.findall(str(action.get("content") or "").rpartition("</think>")[2])
        problem = _FORM
        if found:
            verb, argument = found[-1][0].lower(), " ".join(found[-1][1].split())[:_LONGEST]
            problem = self._search(argument) if verb == "search" else self._click(argument.lower())
        if self._stop is None and self._steps >= self._settings.max_steps:
            self._stop = "max_steps"
        told = "Thank you for shopping with us." if self._bought else self._shown()
        return {
            "state": [{"role": "user", "content": f"{problem}\n\n{told}".strip()}],
            "reward": self.evaluate(params={"sparse": False}) if self._stop is not None else 0.0,
            "is_terminated": self._stop is not None,
            "info": {
                "steps": self._steps,
                "refused": problem or False,
                "finished": self._stop == "finished",
                "answer": self._bought.asin if self._bought else None,
                "stop_reason": self._stop,
            },
        }

    def _search(self, words: str) -> str:
        """Search for products; returns the problem or ""."""
        if self._results or self._product:
            return f"Error: there is no search here; click[{BACK}] first."
        if not words:
            return "Error: search wants words."
        self._results = [self._asins[place] for place in _index().search(words, MOST_RESULTS)]
        self._page = 0
        return "" if self._results else "Error: nothing was found; try other words."

    def _click(self, button: str) -> str:
        """Press a button of the page; returns the problem or ""."""
        if button not in self._buttons():
            return f"Error: there is no button {button[:80]!r} on this page."
        if button == BACK:
            self._results, self._product, self._text, self._chosen = [], None, None, {}
        elif button == PREVIOUS and self._text is not None:
            self._text = None
        elif button == PREVIOUS and self._product is not None:
            self._product, self._chosen = None, {}
        elif button in (NEXT, PREVIOUS):
            self._page += 1 if button == NEXT else -1
        elif self._product is None:
            self._product = self._shop.products[next(asin for asin in self._listed() if asin.lower() == button)]
        elif button == BUY:
            self._bought, self._stop = self._product, "finished"
        elif button in TEXTS:
            self._text = button
        else:
            kind = next(kind for kind, values in self._product.options.items() if button in values)
            self._chosen[kind] = button
        return ""

    def _listed(self) -> list[str]:
        return self._results[self._page * PAGE : (self._page + 1) * PAGE]

    def _buttons(self) -> list[str]:
        if self._text is not None:
            return [BACK, PREVIOUS]
        if self._product is not None:
            options = [value for values in self._product.options.values() for value in values]
            return [BACK, PREVIOUS, *options, *TEXTS, BUY]
        if not self._results:
            return []
        more = [NEXT] if (self._page + 1) * PAGE < len(self._results) else []
        return [BACK, *([PREVIOUS] if self._page else []), *more, *(asin.lower() for asin in self._listed())]

    def _shown(self) -> str:
        if self._product is None and not self._results:
            return "[search]"
        product = self._product
        if product is None:
            rows = [self._shop.products[asin] for asin in self._listed()]
            lines = [f"[{row.asin.lower()}] {row.name} ${row.price:.2f}" for row in rows]
            bar = " ".join(f"[{button}]" for button in self._buttons() if button in (BACK, PREVIOUS, NEXT))
            pages = (len(self._results) - 1) // PAGE + 1
            return "\n".join([f"{bar} page {self._page + 1} of {pages}", *lines])
        if self._text is not None:
            texts = {
                "description": product.description,
                "features": "\n".join(product.bullets),
                "attributes": f"{product.category}\n{product.query}",
            }
            return f"[{BACK}] [{PREVIOUS}]\n{texts[self._text]}"
        lines = [f"[{BACK}] [{PREVIOUS}]"]
        for kind, values in product.options.items():
            chosen = f" (chosen: {self._chosen[kind]})" if kind in self._chosen else ""
            lines.append(f"{kind}: {' '.join(f'[{value}]' for value in values)}{chosen}")
        named = " ".join(f"[{name}]" for name in TEXTS)
        return "\n".join([*lines, product.name, f"price: ${product.price:.2f}", f"{named} [{BUY}]"])

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1.0 if the published reward of the purchase is 1, else 0.0; with `sparse=False` that reward. 0 without
        a purchase and for an open query."""
        is_sparse = read_flags(params, {"sparse": True})["sparse"]
        if self._bought is None or self._settings.is_open_query:
            return 0.0
        wanted = self._shop.products[self._goal.asin]
        value = reward(self._goal, wanted, self._bought, tuple(self._chosen.values()))
        return float(value == 1.0) if is_sparse else value

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "tools" (none) or "state" (`base.StateInfo`)."""
        asked = dict(params or {})
        what = asked.pop("what", "tools")
        if asked or what not in ("tools", "state"):
            raise ValueError(f"get_info of webshop understands what=tools|state; got {params!r}")
        if what == "tools":
            return None
        place = {"results": " ".join(self._results), "page": self._page, "text": self._text or ""}
        at = {"product": self._product.asin if self._product else "", "chosen": dict(self._chosen)}
        bought = self._bought.asin if self._bought else ""
        answer, over = bought or None, self._stop == "finished"
        return {"facts": {**place, **at, "bought": bought}, "answer": answer, "finished": over, "exact": True}

    def reference_actions(self) -> list[str] | None:
        """Return actions that buy the request's own article."""
        if self._steps or self._settings.is_open_query:
            return None
        product = self._shop.products[self._goal.asin]
        words = " ".join(re.findall(r"[A-Za-z0-9]+", product.text()))[:_LONGEST]
        found = [self._asins[place] for place in _index().search(words, MOST_RESULTS)]
        if product.asin not in found:
            return None
        turns = [f"click[{NEXT}]"] * (found.index(product.asin) // PAGE)
        values = {value for values in product.options.values() for value in values}
        options = [f"click[{value}]" for value in self._goal.options if value in values]
        return [f"search[{words}]", *turns, f"click[{product.asin.lower()}]", *options, f"click[{BUY}]"]

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of train, dev or test, at most `n` (0 for all). Raises ValueError, WebshopData."""
        asked = {"n": 0, **(params or {})}
        if set(asked) != {"n"} or type(asked["n"]) is not int or asked["n"] < 0:
            raise ValueError(f"the requests of webshop take n, a whole number; got {params!r}")
        splits = load_shop().splits
        if split not in splits:
            raise ValueError(f"unknown split {split!r}; webshop has: {', '.join(splits)}")
        return list(splits[split][: asked["n"] or None])
