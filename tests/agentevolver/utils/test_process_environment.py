"""Processes of ours, and users' code in them, under variables that break HTTP clients."""

import os
import subprocess
import sys
import urllib.request

import httpx
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.utils.process_environment import prepare
from agentevolver.utils.web.access import is_loopback

PROXY = "http://127.0.0.1:1"
EVERY = {f"{kind}_PROXY": PROXY for kind in ("HTTP", "HTTPS", "ALL")}
# Variables, and which of them is removed.
HOSTILE = [
    (EVERY, ""),
    ({name.lower(): PROXY for name in EVERY}, ""),
    ({**EVERY, "NO_PROXY": "example.org", "no_proxy": ".corp, 10.0.0.0/8"}, ""),
    ({**EVERY, "NO_PROXY": "*"}, ""),
    ({**EVERY, "NO_PROXY": "[::1],fe80::/10,a:b,\u00e9,,<local>,*.x"}, ""),
    ({"HTTP_PROXY": "proxy.corp:3128", "HTTPS_PROXY": ""}, ""),
    ({"ALL_PROXY": "socks5://127.0.0.1:1"}, "ALL_PROXY"),
    ({"all_proxy": "socks://127.0.0.1:1/"}, "all_proxy"),
    ({"HTTPS_PROXY": "socks5h://me:word@proxy:1"}, "HTTPS_PROXY"),
    ({"HTTP_PROXY": "socks4a://127.0.0.1:1"}, "HTTP_PROXY"),
    ({"http_proxy": "quic://proxy"}, "http_proxy"),
    ({"HTTP_PROXY": "http://proxy:port"}, "HTTP_PROXY"),
    ({"HTTP_PROXY": "http://me:p@ss:word@proxy:word"}, "HTTP_PROXY"),
    ({"HTTP_PROXY": "http://[::1"}, "HTTP_PROXY"),
    ({"HTTPS_PROXY": "http://pr\u00f6xy:1"}, ""),
    ({"ALL_PROXY": "http://"}, ""),
    ({"SSL_CERT_FILE": "/nowhere/cacert.pem"}, "SSL_CERT_FILE"),
]
LOCAL = ("http://127.0.0.1:8000/v1", "http://localhost:8000/v1", "http://[::1]:8000/v1")


def prepared_here(variables, monkeypatch):
    """Prepare variables, set them in this process, and check where a client sends requests to loopback."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    prepared = dict(variables)
    problems = prepare(prepared)
    for name, value in prepared.items():
        monkeypatch.setenv(name, value)
    with httpx.Client(verify=False) as client:
        assert all(client._transport_for_url(httpx.URL(url)) is client._transport for url in LOCAL)
    return prepared, problems


@pytest.mark.parametrize(("variables", "removed"), HOSTILE)
def test_with_any_proxy_clients_can_be_made_and_reach_loopback_without_it(variables, removed, monkeypatch):
    prepared, problems = prepared_here(variables, monkeypatch)
    assert all(requests.utils.should_bypass_proxies(url, None) for url in LOCAL[:2])
    assert all(urllib.request.proxy_bypass(host) for host in ("127.0.0.1", "localhost"))
    assert variables.keys() - prepared.keys() == ({removed} if removed else set())
    assert len(problems) == bool(removed) and all(removed in one and "word" not in one for one in problems)
    assert prepare(prepared) == []
    if "example.org" in variables.get("NO_PROXY", ""):
        assert "example.org" in prepared["no_proxy"]


@settings(deadline=None, max_examples=40)
@given(
    proxy=st.text(st.sampled_from("htps:/@[]ok5.1é* "), max_size=16),
    exempt=st.text(st.sampled_from("a1:.,/[]*é -"), max_size=16),
)
def test_no_text_in_these_variables_breaks_a_client(proxy, exempt):
    with pytest.MonkeyPatch.context() as patch:
        prepared_here({"HTTP_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": exempt}, patch)


KINDS = {
    "launcher": "agentevolver.launcher.cli",
    "main job": "agentevolver.trainer.job.main",
    "rollout worker": "agentevolver.trainer.transport.worker",
    "preload": "agentevolver.trainer.preload.client",
    "environment service": "env_service.cli",
    "environment host": "env_service.hosting.forkserver",
    "page": "agentevolver.view.app",
    "task manager": "task_manager.synthesize",
    "experience manager": "experience_manager.cli",
    "command line": "agentevolver.cli",
}


@pytest.mark.thorough
@pytest.mark.parametrize("module", KINDS.values(), ids=KINDS)
def test_every_kind_of_process_mends_its_variables_before_it_reads_them(module):
    hostile = {name: value for variables, _ in HOSTILE for name, value in variables.items()}
    client = 'openai.AsyncOpenAI(base_url="http://127.0.0.1:1", api_key="x")'
    code = f"import {module}, openai, os; {client}; print(os.environ['no_proxy'])"
    environ = {**os.environ, **hostile, "ALL_PROXY": "socks://127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert any(is_loopback(entry) for entry in done.stdout.split(",")) or done.stdout == "*\n"
    assert "ALL_PROXY is not used" in done.stderr
