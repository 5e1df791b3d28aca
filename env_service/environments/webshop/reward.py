"""The reward of WebShop (Yao et al. 2022, arXiv 2207.01206, section 3): how well a purchase fits a request.

    r = r_type * (|U_att & Y_att| + |U_opt & Y_opt| + [y_price <= u_price]) / (|U_att| + |U_opt| + 1)

U is what is wanted, Y what was bought. r_type compares the titles of the wanted and the bought article: 0 without a
common word, 0.1 for a share below 0.1, 0.5 for at most 0.2 unless query or category are the same, else 1. Attributes
and options match if most of their words do, as published.

Two differences from the published code: titles are compared by all words except stop words, there by the nouns that
spaCy finds; and the token set ratio (above 85) is computed with difflib, there with thefuzz.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from env_service.environments.webshop.products import Product, ShoppingGoal

_WORD = re.compile(r"[a-z0-9]+")
_EMPTY = frozenset(
    ["a", "an", "and", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "to", "with"]
)
ALIKE = 0.85


def type_reward(wanted: Product, bought: Product) -> float:
    desired, found = _title(wanted), _title(bought)
    share = len(desired & found) / len(desired) if desired else 0.2
    if share == 0:
        return 0.0
    if share < 0.1:
        return 0.1
    parts = [set(map(str.strip, product.category.split(">"))) - {""} for product in (wanted, bought)]
    is_same = wanted.query == bought.query or len(parts[0] & parts[1]) >= 2
    return 1.0 if share > 0.2 or is_same else 0.5


def attributes_met(goal: ShoppingGoal, bought: Product) -> int:
    text = bought.text().lower()
    return sum(_is_among(name, bought.attributes) or name.lower() in text for name in goal.attributes)


def options_met(goal: ShoppingGoal, chosen: Sequence[str]) -> int:
    return sum(_is_among(value, chosen) for value in goal.options)


def reward(goal: ShoppingGoal, wanted: Product, bought: Product, chosen: Sequence[str]) -> float:
    met = attributes_met(goal, bought) + options_met(goal, chosen) + (bought.price <= goal.price_upper)
    return type_reward(wanted, bought) * met / (len(goal.attributes) + len(goal.options) + 1)


def _title(product: Product) -> set[str]:
    return set(_WORD.findall(product.name.lower())) - _EMPTY


def _is_among(text: str, others: Iterable[str]) -> bool:
    return any(alike(text, other) > ALIKE for other in others)


def alike(one: str, other: str) -> float:
    """Return the token set ratio of two texts, 0..1: the greatest ratio of any two of the common words, those plus
    the rest of `one`, and those plus the rest of `other`."""
    first, second = set(_WORD.findall(one.lower())), set(_WORD.findall(other.lower()))
    if not first or not second:
        return 0.0
    common = " ".join(sorted(first & second))
    texts = [f"{common} {' '.join(sorted(rest))}".strip() for rest in (first - second, second - first)]
    pairs = [(texts[0], texts[1])]
    if common:
        pairs += [(common, texts[0]), (common, texts[1])]
    return max(difflib.SequenceMatcher(None, left, right).ratio() for left, right in pairs)
