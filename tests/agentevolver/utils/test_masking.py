"""No secret reaches what is written or shown, and what is no secret stays readable."""

from __future__ import annotations

import json
import string
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from agentevolver.launcher.plan import Plan, masked
from agentevolver.launcher.records import LaunchRecord
from agentevolver.llm.errors import redact
from agentevolver.utils.secrets import is_secret, masked_arguments, masked_text, masked_tree
from agentevolver.view.experiment import Experiment
from agentevolver.view.logs import Logs

NAMES = ["apiKey", "HF_TOKEN", "x-api-key", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "Authorization", "env.credentials"]
HARMLESS = ["api_key_env", "max_tokens", "tokenizer_path", "keys", "ppo_max_token_len_per_gpu", "monkey", "secretary"]

_letters = st.text(string.ascii_letters + string.digits, min_size=20, max_size=36)
_upper = st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16)
LOOKS = st.one_of(
    _letters.map("sk-{}".format),
    _letters.map("sk-proj-{}".format),
    _letters.map("gsk_{}".format),
    _letters.map("hf_{}".format),
    _upper.map("AKIA{}".format),
    _letters.map("ghp_{}".format),
    _letters.map("github_pat_{}".format),
    _letters.map("xoxb-{}".format),
    st.tuples(_letters, _letters, _letters).map(lambda parts: "eyJ{}.eyJ{}.{}".format(*parts)),
)
"""Secrets that are known by themselves."""
WORDS = st.text(string.ascii_letters + string.digits + "_-+/.!%", min_size=8, max_size=40).map("q7{}".format)
"""Secrets that are known by the name they stand under alone."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_tells_a_secret_in_any_case(name: str) -> None:
    assert is_secret(name)
    assert masked_tree({name: "hunter2"}) == {name: "***"}
    assert masked_tree({name: ["hunter2", {"a": 1234}]}) == {name: ["***", {"a": "***"}]}
    assert masked_arguments([f"{name}=hunter2", f"--{name}", "hunter2"]) == [f"{name}=***", f"--{name}", "***"]
    assert "hunter2" not in masked_text(f'env: {name}=hunter2 and {{"{name}": "hunter2 hunter2"}}, {name}: hunter2')


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_sounds_like_a_secret_is_shown(name: str) -> None:
    assert masked_tree({name: "value"}) == {name: "value"}
    assert masked_arguments([f"{name}=value"]) == [f"{name}=value"]
    assert masked_text(f"{name}=value, {name}: value") == f"{name}=value, {name}: value"


def test_references_stay_but_their_defaults_do_not() -> None:
    tree = {
        "api_key": "${oc.env:KEY}",
        "token": "${oc.env:KEY,null}",
        "b": {"password": "${oc.env:KEY,hunter2}", "secret": None},
    }
    assert masked_tree(tree) == {**tree, "b": {"password": "***", "secret": None}}


@pytest.mark.parametrize(
    "text",
    [
        "invalid token: expected",
        "step 3: 120 tok/s, max_tokens: 4096, reward=0.5",
        "http://127.0.0.1:8080/v1?page=2 (pid=17)",
        "def f(token: str, password: str | None = None) -> None:",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b task-0123456789 disk-usage sklearn",
        "a.b=c=d",
    ],
)
def test_lines_without_a_secret_stay_as_they_are(text: str) -> None:
    assert masked_text(text) == text


def test_a_private_key_and_the_user_of_a_url_are_masked() -> None:
    pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nrest"
    assert masked_text(pem) == "***\nrest"
    assert masked_text("git clone https://me:hunter2@host/x") == "git clone https://***@host/x"
    assert masked_text("-H 'Authorization: Bearer hunter2hunter2'") == "-H 'Authorization: ***'"


@given(
    LOOKS,
    st.sampled_from(
        ["{}", "x {} y", "'{}'", "--flag={}", "a={}", "[{}]", "http://h/?k={}&b=1", '{{"a": "{}"}}', "+{}\n-{}"]
    ),
)
def test_a_look_tells_a_secret_wherever_it_stands(secret: str, frame: str) -> None:
    text = frame.format(secret, secret)
    assert secret not in masked_text(text)
    assert secret not in str(masked_tree({"a": [text]}))
    assert secret not in "".join(masked_arguments([text]))
    assert secret not in redact(text) and secret not in redact(" " * (16_384 - len(text) // 2) + text)
    assert masked_text(masked_text(text)) == masked_text(text)


def test_long_lines_are_masked_in_no_time() -> None:
    for piece in ("a=", "token", "token=", '"', "://", "eyJ", "-----BEGIN PRIVATE KEY-----", "${", "\\"):
        began = time.perf_counter()
        masked_text(piece * (100_000 // len(piece)))
        assert time.perf_counter() - began < 2, piece


def _plan(folder: Path, config: dict[str, object], reused: str) -> Plan:
    return Plan("r", "cpu", folder, config, (), None, None, None, None, (reused,))


@pytest.mark.thorough
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(look=LOOKS, word=WORDS, name=st.sampled_from(NAMES))
def test_nothing_that_is_written_or_shown_holds_a_planted_secret(
    look: str, word: str, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("e")
    (folder / "logs").mkdir()
    config = {
        "a": {name: word},
        "list": [look, f"{name}={word}"],
        "url": f"https://u:{word}@host/",
        "deep": [{name: [word]}],
    }
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)), encoding="utf-8")
    (folder / "logs" / "driver.log").write_text(
        f"{name}={word}\n{look}\nhttps://u:{word}@h/\n{json.dumps({name: word})}\n"
    )
    checkout = folder / "code"
    checkout.mkdir()
    (checkout / "x.py").write_text("one = 1\n")
    for command in ("init -q", "add x.py", "-c user.name=t -c user.email=t@t commit -q -m first"):
        subprocess.run(["git", "-C", str(checkout), *command.split()], check=True)
    (checkout / "x.py").write_text(
        f'{name} = "{word}"\nother = "{look}"\n'.replace("-", "_") if "-" in name else f"{name}={word}\n{look}\n"
    )
    argv = masked_arguments(
        [f"a.{name}={word}", f"--{name}", word, f"b={look}", f"+c={{{name}: {word}}}", f"url=https://u:{word}@host"]
    )
    made = _plan(folder, config, f"the service at https://u:{word}@host with {look}")
    LaunchRecord(folder, "r", argv, checkout, masked(made.config)).finish(0)

    written = [path.read_text() for path in (folder / "launches").iterdir()]
    experiment = Experiment(folder)
    shown = [
        experiment.shown_config(),
        json.dumps(experiment.launches()),
        Logs(folder / "logs").read("driver.log")["text"],
    ]
    dry = [masked_text(made.describe()), masked(made.config)]
    for text in (*written, *shown, *dry):
        assert word not in text
        assert look not in text
    assert OmegaConf.create(masked(made.config)).url == "https://***@host/"
