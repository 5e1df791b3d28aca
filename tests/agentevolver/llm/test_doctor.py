"""The doctor: each endpoint is asked, and a table says what works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentevolver.cli.commands import llm as cli_module
from agentevolver.llm import LLMSettings, Role
from agentevolver.llm.doctor import DoctorFinding, examine, report
from tests.agentevolver.llm.faulty_server import FaultyServer, Said

pytestmark = pytest.mark.service

CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Turin"}'}}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOD_API_KEY", "sk-test")
    monkeypatch.delenv("NO_API_KEY", raising=False)


def able(number: int, body: dict[str, Any]) -> Said:
    if "tools" in body:
        return Said(None, finish_reason="tool_calls", message={"tool_calls": [CALL]})
    return Said('{"sum": 5}' if "2 + 3" in body["messages"][0]["content"] else "ready")


def poor(number: int, body: dict[str, Any]) -> Said:
    for name in ("tools", "response_format"):
        if name in body:
            return Said(status=400, text=f"Unsupported parameter: '{name}'")
    return Said("five, I think" if "2 + 3" in body["messages"][0]["content"] else "ready")


async def examined(**values: Any) -> dict[Role, DoctorFinding]:
    found = await examine(LLMSettings.model_validate({"model": "m", "timeout_s": 5, **values}))
    return {role: finding for finding in found for role in finding.roles}


async def test_each_endpoint_is_asked_once_and_said_of_each_role_what_works() -> None:
    async with FaultyServer(able) as good, FaultyServer(poor) as bad:
        roles = {
            "judge": {"base_url": bad.url},
            "attributor": {"base_url": "policy"},
            "summariser": {"base_url": "offline"},
        }
        found = await examined(base_url=good.url, api_key_env="GOOD_API_KEY", price_in=1.0, price_out=1.0, roles=roles)
    explorer, judge = found[Role.EXPLORER], found[Role.JUDGE]
    assert explorer.roles == (Role.EXPLORER, Role.SYNTHESISER, Role.VERIFIER)
    assert explorer.works
    assert "text yes, JSON yes, tool call yes, response_format yes" in explorer.said
    assert "40 tokens in, 20 out, cost 0.000060" in explorer.said
    assert not judge.works and "no usable reply" in judge.problems[0] and "json_mode: schema" in judge.problems[0]
    assert "text yes, JSON no, tool call no, response_format no" in judge.said
    assert "tools" in judge.optional[0] and "response_format" in judge.optional[1]
    assert found[Role.ATTRIBUTOR].works and found[Role.SUMMARISER].works
    lines = report(list(dict.fromkeys(found.values()))).splitlines()
    assert lines[0].startswith("explorer, synthesiser, verifier: m at http")
    assert lines[1].startswith("judge: m at http") and lines[2].startswith("  PROBLEM JSON: ")


def test_the_command_ends_with_zero_only_if_every_role_works(capsys: pytest.CaptureFixture[str]) -> None:
    conf = str(Path(__file__).parents[3] / "examples" / "basic.yaml")
    assert cli_module.main(["doctor", "--conf", conf]) == 0
    assert "built-in teacher" in capsys.readouterr().out
    nowhere = ["llm.base_url=http://127.0.0.1:9/v1", "llm.api_key_env=null"]
    assert cli_module.main(["doctor", "--conf", conf, *nowhere]) == 1
    assert "PROBLEM text: " in capsys.readouterr().out
    assert cli_module.main(["doctor", "--conf", conf, "llm.omit=[everything]"]) == 2
    assert "llm.omit" in capsys.readouterr().err
