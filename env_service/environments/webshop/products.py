"""Products and goals of WebShop: read from a folder in the published format, or generated from a seed.

The folder holds the paper's files `items_shuffle*.json` (a list of products), `items_ins*.json` (attributes by asin)
and `items_human_ins.json` (requests by asin). They are in no package registry.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "WEBSHOP_DATA"
N_SYNTHETIC = 1000
_GOALS_PER_PRODUCT = 2
_PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_HEADROOM = (10, 20, 30, 50)


class WebshopData(RuntimeError):
    """The data folder cannot be read; the message names the file and its expected content."""


@dataclass(frozen=True, slots=True)
class Product:
    """An article: `options` are its choices by kind, `price` is the lowest in dollars."""

    asin: str
    name: str
    description: str
    bullets: tuple[str, ...]
    query: str
    category: str
    price: float
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]

    def text(self) -> str:
        return " ".join((self.name, self.description, *self.bullets))


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """A request: the article behind it, the wanted attributes and options, and the highest price."""

    goal_id: str
    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


@dataclass(frozen=True, slots=True)
class Shop:
    products: Mapping[str, Product]
    goals: Mapping[str, ShoppingGoal]
    splits: Mapping[str, tuple[str, ...]]


@cache
def load_shop() -> Shop:
    """Return the shop of the folder that `WEBSHOP_DATA` names, else the synthetic one; raises WebshopData."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return read_shop(Path(folder)) if folder else synthetic_shop()


def read_shop(folder: Path) -> Shop:
    """Read a folder in the published format; raises WebshopData."""
    items = _json(folder, "items_shuffle*.json", list)
    told = _json(folder, "items_ins*.json", dict)
    asked = _json(folder, "items_human_ins*.json", dict)
    try:
        products = {str(item["asin"]): _product(item, told.get(item["asin"], {})) for item in items}
        goals = list(_goals(products, asked))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WebshopData(f"{folder} is not in WebShop's published format: {type(error).__name__}: {error}") from error
    if not goals:
        raise WebshopData(f"{folder}: no request of items_human_ins*.json is for a product of items_shuffle*.json")
    random.Random(233).shuffle(goals)
    names = [goal.goal_id for goal in goals]
    # As published: the first 500 are the test, the next 1,000 for development, the rest for training.
    test, dev = min(500, len(names) // 5), min(1500, len(names) // 2)
    splits = {"test": tuple(names[:test]), "dev": tuple(names[test:dev]), "train": tuple(names[dev:])}
    return Shop(products, {goal.goal_id: goal for goal in goals}, splits)


def _json(folder: Path, pattern: str, kind: type) -> Any:
    found = sorted(path for path in folder.glob(pattern) if "human" in pattern or "human" not in path.name)
    if len(found) != 1:
        raise WebshopData(f"{folder} must hold one file {pattern}, and holds {len(found)}; see the README of webshop")
    try:
        value = json.loads(found[0].read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WebshopData(f"{found[0]} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise WebshopData(f"{found[0]} must hold a {kind.__name__}, not a {type(value).__name__}")
    return value


def _product(item: Mapping[str, Any], told: Mapping[str, Any]) -> Product:
    options = {
        str(kind).lower(): tuple(str(choice["value"]).strip().lower() for choice in choices or ())
        for kind, choices in (item.get("customization_options") or {}).items()
    }
    prices = [float(text.replace(",", "")) for text in _PRICE.findall(str(item.get("pricing") or ""))]
    bullets = item.get("small_description") or ()
    return Product(
        str(item["asin"]),
        str(item["name"]),
        str(item.get("full_description") or ""),
        tuple(map(str, bullets if isinstance(bullets, list) else [bullets])),
        str(item.get("query") or "").lower().strip(),
        str(item.get("product_category") or "").replace("\u203a", ">"),
        min(prices, default=100.0),
        {kind: choices for kind, choices in options.items() if choices},
        tuple(map(str, told.get("attributes") or ())),
    )


def _goals(products: Mapping[str, Product], asked: Mapping[str, Any]) -> Iterator[ShoppingGoal]:
    for asin in sorted(set(asked) & set(products)):
        for number, request in enumerate(asked[asin]):
            attributes = tuple(map(str, request.get("instruction_attributes") or ()))
            if not attributes:
                continue
            wanted = request.get("instruction_options") or ()
            options = tuple(str(value).lower() for value in (wanted.values() if isinstance(wanted, dict) else wanted))
            upper = _upper(products[asin].price, random.Random(f"{asin}.{number}"))
            text = f"{str(request['instruction']).strip('. ')}, and price lower than {upper:.2f} dollars"
            yield ShoppingGoal(f"{asin}.{number}", asin, text, attributes, options, upper)


def _upper(price: float, rng: random.Random) -> float:
    return float(int(price / 10) * 10 + rng.choice(_HEADROOM))


# Category (levels parted by >, as the published ones are by a character of their own), kinds of options, attributes.
_KINDS = {
    "shoes": (
        "Clothing > Shoes",
        ("size", "color"),
        ("waterproof", "non slip", "rubber sole", "lace up", "leather sole"),
    ),
    "lamp": ("Home > Lighting", ("color",), ("energy saving", "easy to assemble", "dimmable", "eco friendly")),
    "backpack": ("Luggage > Bags", ("color", "size"), ("water resistant", "lightweight", "heavy duty", "machine wash")),
    "headphones": ("Electronics > Audio", ("color",), ("noise cancelling", "wireless", "hands free", "long lasting")),
    "snack": (
        "Grocery > Snacks",
        ("flavor", "size"),
        ("gluten free", "sugar free", "non gmo", "high protein", "vegan"),
    ),
    "chair": ("Home > Furniture", ("color",), ("easy to clean", "solid wood", "memory foam", "space saving")),
    "shampoo": (
        "Beauty > Hair",
        ("scent", "size"),
        ("cruelty free", "sulfate free", "natural ingredients", "anti dandruff"),
    ),
    "curtains": ("Home > Windows", ("color", "size"), ("machine washable", "blackout", "soundproof", "heat insulated")),
}
_CHOICES = {
    "color": ("red", "blue", "black", "white", "green", "grey"),
    "size": ("small", "medium", "large", "x-large"),
    "flavor": ("chocolate", "vanilla", "berry", "salted caramel"),
    "scent": ("lavender", "mint", "coconut", "citrus"),
}
_BRANDS = ("Alder", "Birch", "Cedar", "Dune", "Ember", "Fjord", "Grove", "Harbor", "Iris", "Juniper")
_STYLES = ("classic", "modern", "compact", "premium", "everyday", "outdoor", "vintage", "studio")


def synthetic_shop(seed: int = 0, count: int = N_SYNTHETIC) -> Shop:
    """Make `count` products of eight kinds, and two requests for each product. The seed determines all of them."""
    rng = random.Random(f"webshop-{seed}")
    products: dict[str, Product] = {}
    goals: list[ShoppingGoal] = []
    for number in range(count):
        product = _made(number, rng)
        products[product.asin] = product
        goals += [_wish(product, place, rng) for place in range(_GOALS_PER_PRODUCT)]
    rng.shuffle(goals)
    names = [goal.goal_id for goal in goals]
    tenth = len(names) // 10
    splits = {"test": tuple(names[:tenth]), "dev": tuple(names[tenth : 2 * tenth]), "train": tuple(names[2 * tenth :])}
    return Shop(products, {goal.goal_id: goal for goal in goals}, splits)


def _made(number: int, rng: random.Random) -> Product:
    kind = rng.choice(sorted(_KINDS))
    category, option_kinds, known = _KINDS[kind]
    attributes = tuple(rng.sample(known, 3))
    style, brand = rng.choice(_STYLES), rng.choice(_BRANDS)
    options = {name: tuple(rng.sample(_CHOICES[name], rng.randint(2, 4))) for name in option_kinds}
    name = f"{brand} {style} {kind}, {attributes[0]}"
    bullets = (f"{attributes[1]} and made to last", f"a {style} {kind} that is {attributes[2]}")
    price = rng.randint(5, 150) + 0.99
    asin = f"S{number:05}"
    return Product(asin, name, f"{kind} by {brand}.", bullets, kind, category, price, options, attributes)


def _wish(product: Product, place: int, rng: random.Random) -> ShoppingGoal:
    attributes = tuple(rng.sample(product.attributes, rng.randint(1, 2)))
    chosen = {kind: rng.choice(choices) for kind, choices in product.options.items()}
    upper = _upper(product.price, rng)
    style = product.name.split()[1]
    wishes = " ".join(f"with {kind} {value}" for kind, value in chosen.items())
    text = f"i need a {style} {product.query} that is {' and '.join(attributes)} {wishes}"
    text += f", and price lower than {upper:.2f} dollars"
    return ShoppingGoal(f"{product.asin}.{place}", product.asin, text, attributes, tuple(chosen.values()), upper)
