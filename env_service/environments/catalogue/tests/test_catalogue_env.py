"""The catalogue's episodes: references solve their tasks, searching and loading are actions, and what is not loaded or
belongs to another world cannot be called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calling import answers, calling

from env_service.contract import checked_init_state, checked_step
from env_service.demonstrations import assistant_message
from env_service.environments.catalogue.env import CatalogueEnv
from env_service.environments.catalogue.learned import Learned, learned_file

PAY = "pocket.pay.k1.17"


def begun(task_id: str, **params: Any) -> CatalogueEnv:
    env = CatalogueEnv(task_id, "one", params)
    checked_init_state(env.get_init_state())
    return env


def solved(env: CatalogueEnv, *, search: bool = True) -> Any:
    """Carry the reference out, without its searches if `search` is false; returns the last result."""
    for turn, action in enumerate(env.reference_actions() or []):
        if '"search_tools"' in action and not search:
            continue
        result = checked_step(env.step(assistant_message(action, turn)))
        assert result["info"]["refused"] is False, (action, result["state"])
    return result


def says(env: CatalogueEnv, text: str) -> tuple[str, bool]:
    result = checked_step(env.step({"role": "assistant", "content": text}))
    return result["state"][0]["content"], bool(result["info"]["refused"])


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_references_of_pocket_need_one_to_three_tools_and_solve_their_tasks(split: str) -> None:
    ids = CatalogueEnv.get_query_list(split, {"worlds": ["pocket"]})
    assert len(ids) > 100
    for task in ids[:: max(1, len(ids) // 40)]:
        env = begun(task, native_tools=True)
        assert env.evaluate() == 0.0
        result = solved(env)
        assert (result["reward"], result["info"]["finished"]) == (1.0, True)
        anew = begun(task, native_tools=True).reference_actions() or []
        assert 1 <= sum('"load_tool"' in action for action in anew) <= 3


def test_references_of_bfcl_solve_their_tasks_and_too_few_calls_do_not() -> None:
    pytest.importorskip("bfcl_eval", reason="see the README of bfcl")
    ids = {split: CatalogueEnv.get_query_list(split, {"worlds": ["bfcl"]}) for split in ("train", "dev", "test")}
    assert sum(map(len, ids.values())) > 1000 and not set(ids["train"]) & set(ids["test"])
    for task in (task for tasks in ids.values() for task in tasks[::12]):
        env = begun(task, native_tools=True)
        result = solved(env)
        assert (result["reward"], env.evaluate(params={"sparse": False})) == (1.0, 1.0)
        idle = begun(task, native_tools=True)
        assert idle.step({"role": "assistant", "content": "done"})["reward"] == 0.0


def test_a_tool_is_callable_once_it_is_loaded_and_named_in_info() -> None:
    env = begun(PAY, native_tools=True)
    assert [tool["function"]["name"] for tool in env.tools()] == ["doc", "search_tools", "load_tool"]
    early = env.step(calling(("bank_pay", {"name": "bob", "amount": "1"})))
    assert "not loaded: call load_tool first" in answers(early)[0] and early["info"]["refused"]
    found = env.step(calling(("search_tools", {"query": "pay a person an amount"})))
    assert "bank_pay" in [row["name"] for row in json.loads(answers(found)[0])] and "tools" not in found["info"]
    loaded = env.step(calling(("load_tool", {"name": "bank_pay"})))
    assert json.loads(answers(loaded)[0])["parameters"]["required"] == ["name", "amount"]
    assert "bank_pay" in [tool["function"]["name"] for tool in loaded["info"]["tools"]]
    assert env.get_info(params={"what": "state"})["facts"]["loaded"] == {"bank_pay": True}


def test_what_is_no_tool_or_of_another_world_is_refused() -> None:
    pytest.importorskip("bfcl_eval", reason="see the README of bfcl")
    env = begun(PAY, native_tools=True)
    told = answers(
        env.step(
            calling(
                ("load_tool", {"name": "bank_pai"}),
                ("load_tool", {"name": "get_weather"}),
                ("get_weather", {}),
                ("search_tools", {"query": ""}),
                ("search_tools", {"words": "x"}),
                ("no_tool", {}),
            )
        )
    )
    assert "did you mean bank_pay?" in told[0] and "does not serve this request" in told[2]
    assert "1 to 500 characters" in told[3] and "one text, `query`" in told[4] and "try search_tools" in told[5]


def test_without_search_there_are_the_tools_nearest_to_the_request_and_no_loader() -> None:
    env = begun(PAY, native_tools=True, search=False, preload=20)
    names = [tool["function"]["name"] for tool in env.tools()]
    assert len(names) == 21 and "search_tools" not in names and "load_tool" not in names
    result = env.step(calling(("load_tool", {"name": "bank_pay"})))
    assert result["info"]["refused"]
    assert "search_tools" not in env.get_init_state()["state"][0]["content"]


def test_the_compact_syntax_solves_a_task_line_by_line() -> None:
    env = begun(PAY, syntax="compact")
    told, _ = says(env, "search_tools pay a person")
    assert "bank_pay" in told.split(" , ")
    assert says(env, "load_tool bank_pay") == ("use bank_pay NAME AMOUNT", False)
    assert says(env, "mail_send bob cup")[1]
    for call in env._world.solution():
        name = call.tool.replace(".", "_")
        if name in env._by_name and name not in env._loaded:
            says(env, f"load_tool {name}")
        assert not says(env, " ".join([name, *map(str, call.arguments.values())]))[1]
    result = env.step({"role": "assistant", "content": "done"})
    assert (result["reward"], result["info"]["finished"], result["info"]["searches"]) == (1.0, True, 1)
    with pytest.raises(ValueError, match="over"):
        env.step({"role": "assistant", "content": "done"})


def test_an_episode_ends_when_its_steps_are_spent() -> None:
    env = begun(PAY, syntax="compact", max_steps=2)
    says(env, "search_tools cup")
    result = env.step({"role": "assistant", "content": ""})
    assert result["is_terminated"] and result["info"]["stop_reason"] == "max_steps" and not result["info"]["finished"]


def test_a_success_is_remembered_where_an_instance_asks_for_it() -> None:
    query = "zebra crossing"

    def ranked() -> list[str]:
        return [tool.name for tool in begun(PAY, learn=True)._nearest(query, 5)]

    assert "bank_pay" not in ranked()
    env = begun(PAY, native_tools=True, learn=True, results=50, slack=20)
    env._found_by["bank_pay"] = query
    assert solved(env, search=False)["reward"] == 1.0
    learned = Learned(learned_file())
    assert learned.pairs() == [(query, "bank_pay", 1)]
    learned.close()
    assert ranked()[0] == "bank_pay"
    assert "bank_pay" not in [tool.name for tool in begun(PAY)._nearest(query, 5)]
    learned_file().unlink()


@pytest.mark.parametrize(
    ("task_id", "params", "match"),
    [
        ("chess.1", {}, "must begin with"),
        ("pocket.chess.k1.1", {}, "chess"),
        ("bfcl.none", {}, "no single-turn task"),
        (PAY, {"preload": 129}, "0 to 128"),
        (PAY, {"results": 0}, "1 to 50"),
        (PAY, {"syntax": "xml"}, "json, compact"),
        ("bfcl.simple_python_0", {"syntax": "compact"}, "leave it out"),
    ],
)
def test_what_cannot_be_created_is_refused(task_id: str, params: dict[str, Any], match: str) -> None:
    if task_id.startswith("bfcl"):
        pytest.importorskip("bfcl_eval", reason="see the README of bfcl")
    with pytest.raises(ValueError, match=match):
        CatalogueEnv(task_id, "one", params)


@pytest.mark.parametrize(
    ("split", "params", "match"),
    [
        ("hard", {}, "train, dev, test"),
        ("train", {"world": 1}, "known: worlds"),
        ("train", {"worlds": ["chess"]}, "list with some of"),
        ("train", {"levels": [5]}, "1 to 4"),
        ("train", {"n": -1}, "0 or more"),
    ],
)
def test_a_list_that_cannot_be_is_refused(split: str, params: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CatalogueEnv.get_query_list(split, params)


def test_without_a_catalogue_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOGUE_FOLDER", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"catalogue/setup\.sh"):
        CatalogueEnv(PAY, "one")
