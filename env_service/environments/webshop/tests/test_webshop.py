"""WebShop: the published reward, the pages, the synthetic shop, and a folder in the published format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from env_service.contract import checked_init_state, checked_step
from env_service.environments.webshop.env import WebshopEnv
from env_service.environments.webshop.products import (
    Product,
    ShoppingGoal,
    WebshopData,
    load_shop,
    read_shop,
    synthetic_shop,
)
from env_service.environments.webshop.reward import alike, reward, type_reward
from env_service.environments.webshop.search import Index

RED = Product("A", "classic red shoe", "", ("waterproof sole",), "shoes", "Clothing > Shoes", 30.0, {}, ("non slip",))
WISH = ShoppingGoal("A.0", "A", "a shoe", ("non slip", "waterproof"), ("red", "small"), 40.0)


def begun(task_id: str, **params: Any) -> WebshopEnv:
    env = WebshopEnv(task_id, "one", params)
    checked_init_state(env.get_init_state())
    return env


def does(env: WebshopEnv, action: str) -> tuple[str, Any]:
    result = checked_step(env.step({"role": "assistant", "content": f"I think so.\n{action}"}))
    return result["state"][0]["content"], result


def test_the_reward_is_the_share_of_what_is_wanted() -> None:
    assert reward(WISH, RED, RED, ("red", "small")) == 1.0
    assert reward(WISH, RED, RED, ("red",)) == pytest.approx(4 / 5)
    assert reward(WISH, RED, replace(RED, price=40.01), ("red", "small")) == pytest.approx(4 / 5)
    assert reward(WISH, RED, replace(RED, attributes=()), ("red", "small")) == pytest.approx(4 / 5)
    assert reward(WISH, RED, replace(RED, bullets=(), attributes=()), ()) == pytest.approx(1 / 5)


def test_the_type_is_told_by_title_query_and_category() -> None:
    other = replace(RED, query="lamp", category="Home > Lighting")
    assert type_reward(RED, RED) == 1.0
    assert type_reward(RED, replace(other, name="oak lamp")) == 0.0
    long = replace(RED, name="shoe " + " ".join(f"w{i}" for i in range(9)))
    assert type_reward(long, replace(other, name="shoe")) == 0.5
    assert type_reward(replace(long, name=long.name + " x y"), replace(other, name="shoe")) == 0.1
    assert type_reward(long, replace(other, name="shoe", query="shoes")) == 1.0
    assert type_reward(long, replace(other, name="shoe", category=RED.category)) == 1.0


def test_texts_are_alike_by_their_words() -> None:
    assert alike("machine wash", "wash machine") == 1.0
    assert alike("red", "red and large") == 1.0
    assert alike("red", "blue") < 0.85 and alike("", "x") == 0.0


def test_rarer_words_count_more_and_ties_keep_the_order() -> None:
    index = Index(["red shoe", "blue shoe", "blue shoes", "oak table"])
    assert index.search("blue shoe", 10) == [1, 2, 0]
    assert index.search("tables", 10) == [3] and index.search("zebra", 10) == []


def test_the_synthetic_shop_is_the_same_each_time_and_its_splits_part_its_requests() -> None:
    shop, again = synthetic_shop(), synthetic_shop()
    assert len(shop.products) == 1000 and shop == again and shop != synthetic_shop(1)
    every = [name for names in shop.splits.values() for name in names]
    assert len(every) == len(set(every)) == len(shop.goals) == 2000


def test_what_a_request_was_written_about_earns_one() -> None:
    for task in WebshopEnv.get_query_list("train")[::40]:
        env = begun(task)
        actions = env.reference_actions()
        assert actions, task
        for action in actions:
            assert env.evaluate() == 0.0
            _, result = does(env, action)
            assert result["info"]["refused"] is False, (task, action)
        assert (result["reward"], env.evaluate(), result["info"]["finished"]) == (1.0, 1.0, True)
    with pytest.raises(ValueError, match="over"):
        does(env, "search[x]")


def test_pages_lead_on_and_back() -> None:
    env = begun(WebshopEnv.get_query_list("dev")[0])
    assert "there is no button" in does(env, "click[buy now]")[0]
    told, _ = does(env, "search[lamp]")
    assert "page 1 of 5" in told and "[next >]" in told and "[< prev]" not in told
    assert "there is no search here" in does(env, "search[chair]")[0]
    told, _ = does(env, "click[next >]")
    assert "page 2 of 5" in told and "[< prev]" in told
    asin = told.split("\n")[1].split("]")[0].lstrip("[")
    told, _ = does(env, f"click[{asin.upper()}]")
    assert "[buy now]" in told and "color:" in told
    color = told.split("color: [")[1].split("]")[0]
    assert f"(chosen: {color})" in does(env, f"click[{color}]")[0]
    assert "lamp by" in does(env, "click[description]")[0]
    assert "[buy now]" in does(env, "click[< prev]")[0]
    assert "page 2" in does(env, "click[< prev]")[0]
    assert does(env, "click[back to search]")[0] == "[search]"
    assert "nothing was found" in does(env, "search[qqqq]")[0]
    told, result = does(env, "hm")
    assert told.startswith("Write search[WORDS]") and result["info"]["refused"]


def test_an_episode_ends_without_a_purchase_and_earns_nothing() -> None:
    env = begun(WebshopEnv.get_query_list("dev")[0], max_steps=1)
    _, result = does(env, "search[lamp]")
    assert (result["info"]["stop_reason"], result["reward"], result["info"]["finished"]) == ("max_steps", 0.0, False)


@pytest.mark.parametrize(("split", "params"), [("val2", {}), ("train", {"n": -1}), ("train", {"m": 1})])
def test_a_list_that_cannot_be_is_refused(split: str, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="webshop"):
        WebshopEnv.get_query_list(split, params)


def published(folder: Path) -> None:
    """Write a folder in the published format."""
    item = {
        "asin": "B01",
        "name": "Red Canvas Shoe",
        "full_description": "A shoe.",
        "small_description": ["light"],
        "pricing": "$1,020.50 to $1,100.00",
        "query": "Shoes",
        "product_category": "Clothing \u203a Shoes",
        "customization_options": {"Color": [{"value": "Red", "image": None}], "Size": None},
    }
    wish = {"instruction": "i want a red shoe.", "instruction_attributes": ["light"], "instruction_options": ["red"]}
    (folder / "items_shuffle_1000.json").write_text(json.dumps([item]))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps({"B01": {"attributes": ["light"]}}))
    none = {**wish, "instruction_attributes": []}
    (folder / "items_human_ins.json").write_text(json.dumps({"B01": [wish, none], "B99": [wish]}))


def test_a_published_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path)
    shop = read_shop(tmp_path)
    (product,) = shop.products.values()
    assert (product.price, product.options, product.category) == (1020.5, {"color": ("red",)}, "Clothing > Shoes")
    (goal,) = shop.goals.values()
    assert goal.instruction.startswith("i want a red shoe, and price lower than 10") and goal.price_upper > 1020
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    load_shop.cache_clear()
    try:
        assert WebshopEnv.get_query_list("train") == ["B01.0"]
    finally:
        monkeypatch.undo()
        load_shop.cache_clear()


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("items_human_ins.json", None, "must hold one file"),
        ("items_ins_v2_1000.json", "[]", "must hold a dict"),
        ("items_shuffle_1000.json", "{", "cannot be read"),
        ("items_shuffle_1000.json", "[{}]", "published format: KeyError"),
        ("items_shuffle_1000.json", "[]", "no request"),
    ],
)
def test_a_folder_that_is_none_is_refused(tmp_path: Path, name: str, text: str | None, match: str) -> None:
    published(tmp_path)
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(WebshopData, match=match):
        read_shop(tmp_path)
