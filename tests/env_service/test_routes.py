"""The seven routes and the extra ones, over HTTP: fields, envelope, and a status and code for everything that can be
wrong."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from local_hosts import Http, eventually, say, serving

pytestmark = pytest.mark.service

INIT = {"state": [{"role": "system", "content": "Count."}, {"role": "user", "content": "Reach ten."}]}


async def test_an_episode_has_agentevolvers_paths_fields_and_envelope() -> None:
    async with serving() as running, Http(running.url) as http:
        assert await http.get("/healthz") == (200, "OK")
        assert (await http.post("/get_env_profile", {"env_type": "counter", "params": {"split": "val"}}))[1] == {
            "success": True,
            "data": ["t0", "t1"],
        }
        body = {"env_type": "counter", "task_id": "t1", "instance_id": "a", "messages": {}, "params": {}}
        status, created, _ = await http.post("/create", body)
        assert (status, created) == (
            200,
            {"success": True, "data": {**INIT, "info": {"instance_id": "a", "task_id": "t1"}}},
        )
        step = {"env_type": "default", "task_id": None, "instance_id": "a", "messages": say(10), "params": {}}
        assert (await http.post("/step", step))[1] == {
            "success": True,
            "data": {
                "state": [{"role": "user", "content": "10"}],
                "reward": 1.0,
                "is_terminated": True,
                "info": {"calls": 1},
            },
        }
        assert (await http.post("/evaluate", {"instance_id": "a", "messages": {}, "params": {"sparse": False}}))[1] == {
            "success": True,
            "data": 1.0,
        }
        info = (await http.post("/get_info", {"instance_id": "a", "messages": [say(1), say(2)]}))[1]
        assert info == {"success": True, "data": {"tools": ["add"], "messages": 2}}
        assert (await http.post("/release", {"instance_id": "a"}))[1] == {"success": True, "data": None}
        assert (await http.post("/release", {"instance_id": "a"}))[1] == {"success": False, "data": None}


async def test_a_double_slash_as_agentevolvers_client_sends_it_is_understood() -> None:
    async with serving() as running, Http(running.url) as http:
        status, body, _ = await http.post("//get_env_profile", {"env_type": "counter"})
        assert (status, body["data"]) == (200, ["t0", "t1", "t2"])


WRONG: list[tuple[str, Any, int, str, str]] = [
    ("/create", {"env_type": "counter"}, 400, "bad_request", "needs the field 'task_id'"),
    ("/create", {"env_type": "os", "task_id": "t1"}, 400, "bad_request", "'os' is not served here (served: counter)"),
    ("/create", {"task_id": "x"}, 400, "bad_request", "no task 'x'"),
    ("/create", {"task_id": "t1", "instance_id": "../x"}, 400, "bad_request", "instance_id"),
    ("/create", {"task_id": "t1", "instance_id": "a"}, 409, "instance_exists", "release it first"),
    ("/create", {"task_id": "t1", "params": {"fail": "init"}}, 500, "env_error", "RuntimeError"),
    ("/get_env_profile", {"params": {"split": "nope"}}, 400, "bad_request", "unknown split 'nope'"),
    ("/step", {"messages": {"content": "1"}}, 400, "bad_request", "needs the field 'instance_id'"),
    ("/step", {"instance_id": "a", "messages": [say(1)]}, 400, "bad_request", "one message"),
    ("/step", {"instance_id": "b", "messages": say(1)}, 400, "unknown_instance", "does not exist"),
    ("/step", {"instance_id": "a", "messages": say("x")}, 400, "bad_request", "invalid literal"),
    ("/step", {"instance_id": "a", "messages": say(1), "step_index": 4}, 409, "step_out_of_order", "send 0"),
    ("/step", {"instance_id": "a", "messages": say("!raise")}, 500, "env_error", "KeyError"),
    ("/step", {"instance_id": "a", "messages": say("!garbage object")}, 500, "env_error", "ContractError"),
    ("/step", {"instance_id": "a", "messages": say("!huge")}, 500, "env_error", "ContractError"),
]


async def test_everything_wrong_has_its_status_and_code_and_harms_nothing() -> None:
    async with serving(max_reply_bytes=100_000) as running, Http(running.url) as http:
        await http.post("/create", {"task_id": "t1", "instance_id": "a"})
        for path, body, status, code, detail in WRONG:
            got, reply, _ = await http.post(path, body)
            assert (got, reply["code"], reply["success"]) == (status, code, False), (path, body, reply)
            assert detail in reply["detail"], reply
            assert "Traceback" not in json.dumps(reply) and "secret-detail" not in json.dumps(reply)
            assert ("error_id" in reply) == (status == 500)
        assert list(running.service.instances) == ["a"]
        assert (await http.post("/step", {"instance_id": "a", "messages": say(10)}))[1]["data"]["is_terminated"] is True


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"{", "json_invalid"),
    (b"[]", "model_type"),
    (b'{"instance_id": 3}', "string_type"),
    (b'{"step_index": -1}', "greater_than_equal"),
    (b'{"x": NaN}', "json_invalid"),
    (b"\xff", "json_invalid"),
]


async def test_bodies_that_do_not_match_the_schema_are_422() -> None:
    async with serving() as running, Http(running.url) as http:
        for data, kind in BAD_BODIES:
            status, reply, _ = await http.post("/step", data=data, headers={"Content-Type": "application/json"})
            assert status == 422 and kind in [error["type"] for error in reply["detail"]], (data, reply)


async def test_only_json_is_accepted_so_that_a_web_form_cannot_post() -> None:
    async with serving() as running, Http(running.url) as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            status, reply, _ = await http.post("/create", data=b'{"task_id": "t1"}', headers={"Content-Type": kind})
            assert (status, reply["code"]) == (415, "not_json")
        assert not running.service.instances


async def test_many_requests_in_one_are_answered_in_order_each_for_itself() -> None:
    async with serving() as running, Http(running.url) as http:
        ids = [f"i{number}" for number in range(5)]
        _, created, _ = await http.post(
            "/create_many", {"requests": [{"task_id": "t1", "instance_id": i} for i in [*ids, "i0"]]}
        )
        assert [reply["success"] for reply in created["data"]] == [True] * 5 + [False]
        assert created["data"][-1]["status"] == 409
        _, stepped, _ = await http.post(
            "/step_many",
            {"requests": [{"instance_id": i, "messages": say(number)} for number, i in enumerate([*ids, "zz"])]},
        )
        assert [reply["data"]["state"][0]["content"] for reply in stepped["data"][:5]] == list("01234")
        assert (stepped["data"][5]["status"], stepped["data"][5]["code"]) == (400, "unknown_instance")
        assert (await http.post("/step_many", {"requests": 3}))[0] == 422


async def test_listing_and_metrics_show_what_is_open() -> None:
    async with serving() as running, Http(running.url) as http:
        await http.post("/create", {"task_id": "t1", "instance_id": "a"})
        await http.post("/step", {"instance_id": "a", "messages": say(1)})
        (facts,) = json.loads((await http.get("/instances"))[1])["data"]
        assert (facts["instance_id"], facts["task_id"], facts["state"], facts["steps"]) == ("a", "t1", "open", 1)
        text = (await http.get("/metrics"))[1]
        assert 'env_service_open_instances{env="counter"} 1.0' in text
        assert 'env_service_requests_total{route="/step",status="200"} 1.0' in text
        assert 'env_service_call_seconds_count{call="step",env="counter"} 1.0' in text


async def test_health_says_who_the_service_is_and_whether_its_hosts_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTEVOLVER_RUN_ID", "260101-000000-beef")
    async with serving(shared_hosts=1) as running, aiohttp.ClientSession() as http:
        async with http.get(f"{running.url}/healthz", headers={"accept": "application/json"}) as reply:
            facts = await reply.json()
        assert facts.pop("version").count(".") == 2
        who = {"name": "agentevolver environment service", "env_types": ["counter"], "launch_id": "260101-000000-beef"}
        assert facts == {"status": "ok", **who}
        running.launcher.refuse = True
        running.launcher.hosts[0].kill()
        await eventually(lambda: running.service.not_ready())
        async with http.get(f"{running.url}/healthz", headers={"accept": "application/json"}) as reply:
            facts = await reply.json()
            assert reply.status == 503 and facts["status"] == "no host for counter" and facts["name"] == who["name"]
        running.launcher.refuse = False
        await eventually(lambda: not running.service.not_ready())
