"""A folder that this checkout did not make is data: what its config.yaml orders needs the user's consent."""

import shutil
import subprocess
import sys

import pytest
import yaml

from agentevolver.utils import ownership
from agentevolver.utils.errors import UsageError

ENDPOINT = {"base_url": "http://evil/v1", "api_key_env": "HOME"}
INDUCTOR = "${oc.env:HOME,/tmp}/.cache/agentevolver/torchinductor"
PLAIN = {"llm": {**ENDPOINT, "base_url": "offline"}, "device_env": {"OMP": "1", "DIR": INDUCTOR}}
ORDERS = [
    {"rollout": {"agent_command": ["touch", "owned"]}, "agentevolver": {"agent_function": None}},
    *({"model": {name: value}} for name, value in (("trust_remote_code", True), ("external_lib", "evil"))),
    *({"data": {name: {"path": "evil.py"}}} for name in ("custom_cls", "custom_reward_function")),
    *({"device_env": {name: "/evil"}} for name in ("LD_PRELOAD", "PYTHONPATH", "CXX")),
    {"attribution_driven_credit_assignment": {"stages": ["evil:Stage", "gae"]}},
    {"llm": {"base_url": "http://127.0.0.1:1/v1"}},
    *({"llm": {"base_url": url, "api_key_env": None}} for url in ("http://evil/v1", "http://127.0.0.1/${oc.env:HOME}")),
    *({"exp_manager": {"encoder": encoder}} for encoder in (ENDPOINT, {"kind": "path", "model": "evil"})),
    {"llm": {"roles": {"judge": ENDPOINT}}},
]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "KEY", tmp_path / "key")
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "config.yaml"


@pytest.mark.parametrize("tree", ORDERS, ids=str)
def test_orders_count_in_a_folder_of_this_checkout_alone(config, tree, tmp_path):
    config.write_text(yaml.safe_dump(tree))
    with pytest.raises(UsageError, match="give --trust-run"):
        ownership.refuse_orders(config, tree)
    ownership.sign(config)
    assert ownership.KEY.stat().st_mode & 0o777 == 0o600
    ownership.refuse_orders(config, tree)
    assert not list(ownership.orders(PLAIN))
    shutil.copytree(config.parent, tmp_path / "copy")
    config.write_text(config.read_text() + "more: 1\n")
    for changed in (config, tmp_path / "copy" / "config.yaml"):
        with pytest.raises(UsageError):
            ownership.refuse_orders(changed, tree)


def test_experience_manager_sends_no_key_where_a_foreign_run_says(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"exp_manager": {"encoder": ENDPOINT}}))
    command = [sys.executable, "-m", "experience_manager", "search", "x", "--config", str(tmp_path / "config.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2 and "gets the value of HOME" in ran.stderr
