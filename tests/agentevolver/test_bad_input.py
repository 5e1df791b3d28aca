"""Wrong input of every verb is one line that names it, and exit code 2, before anything is started.

`WRONG` has what each verb has to refuse; that no verb and no option is left out is held to the parsers themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentevolver import cli
from tests.tiny_model import tiny_model_path

ROOT = Path(__file__).parents[2]
BASIC = str(ROOT / "examples" / "basic.yaml")
# A training on this machine may have the usual port, and is named then.
NOBODY_THERE = "env_service.env_url=http://127.0.0.1:1"
MODEL = "MODEL"  # the tiny model's folder
API = ("--api", "http://127.0.0.1:9/v1", "--model", "m")
NOT_SET = "NO_SUCH_KEY_IS_SET"

WRONG: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "": [
        ((), "no verb given"),
        (("frobnicate",), "one of run, resume"),
    ],
    "run": [
        ((), "nothing to do"),
        (("nope.yaml",), "nope.yaml: no such file"),
        ((BASIC, "no.such.key=1"), "unknown key `no`"),
        ((BASIC, "actor_rollout_ref.model.path=/no/such"), "does not exist"),
        ((BASIC, NOBODY_THERE, "env_service.env_type=poket"), "poket"),
        ((BASIC, NOBODY_THERE, "--env-module", "x=no.such:Env"), "cannot import 'no.such'"),
        ((BASIC, "--target", "no.such"), "the module 'no' is neither"),
    ],
    "resume": [
        ((), "expected one argument"),
    ],
    "view": [
        ((), "expected at least one argument"),
        (("/nosuch",), "there is no such folder"),
        ((".",), "it has no config.yaml"),
    ],
    "status": [(("--conf",), "it takes no argument"), (("basic",), "it takes no argument")],
    "stop": [
        (("no_such_run",), "no run of this checkout"),
        (("",), "the name is empty"),
    ],
    "eval": [
        ((), "name a RUN"),
        (("no_such_run",), "no experiment of that name"),
        ((MODEL, *API), "give weights or an endpoint"),
        ((MODEL, "--n", "0"), "0 must be at least 1"),
        ((MODEL, "--env-url", "x"), "--env-url: invalid http_url value"),
        ((MODEL, "--split", "nope", "device=cpu"), "there is no split 'nope'"),
        ((MODEL, "--beside", "nope.json"), "nope.json cannot be read"),
        ((MODEL, "--out", "nope/x.json"), "there is no folder"),
        (API[:2], "--api needs --model"),
        ((*API, "--key-env", NOT_SET, "device=cpu"), f"{NOT_SET} is not set"),
    ],
    "chat": [
        ((), "name a RUN"),
        (("no_such_run",), "no experiment of that name"),
        ((MODEL, "--task", "nope", "device=cpu"), "there is no such task"),
        ((MODEL, "--split", "nope", "device=cpu"), "there is no split 'nope'"),
        (API[:2], "--api needs --model"),
    ],
    "export": [
        ((), "required"),
        (("no_such_run", "--to", "o"), "no experiment of that name"),
        ((MODEL, "--to", "."), "exists already"),
        ((MODEL, "--to", "o", "--push", "bad name"), "must be OWNER/NAME"),
    ],
    "table": [
        ((), "required: FILE"),
        (("nope.yaml",), "nope.yaml: no such file"),
        ((BASIC,), "project: Field required"),
        ((str(ROOT / "examples" / "tables" / "ablation.yaml"), "--conditions", "x"), "there is no condition 'x'"),
    ],
    "new": [
        ((), "required: name"),
        (("No-Name",), "No-Name"),
        (("pocket",), "or of an environment"),
        (("mine", "--mcp", "nope.json"), "cannot read the MCP servers of nope.json"),
    ],
    "check": [
        ((), "required: name"),
        (("poket",), "did you mean 'pocket'"),
        (("pocket", "--env-module", "x"), "is not of the form"),
    ],
    "doctor": [
        (("nope.yaml",), "nope.yaml: no such file"),
    ],
    "completion": [((), "required: shell"), (("tcsh",), "tcsh"), (("bash", "zsh"), "unrecognized arguments: zsh")],
}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without experiments, and no record of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "root", lambda: tmp_path)


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Type something wrong; returns the error, which is one line."""
    capfd.readouterr()  # what making the arguments printed
    try:
        code = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    printed = capfd.readouterr()
    assert code == 2 and printed.out == "", f"{code}: {printed}"
    assert printed.err.endswith("\n") and printed.err.count("\n") == 1, printed.err
    verb = f" {arguments[0]}" if arguments and arguments[0] in cli.VERBS else ""
    assert printed.err.startswith(f"agentevolver{verb}: error: "), "one form for all verbs"
    assert list(Path().iterdir()) == [], "nothing was made"
    return printed.err


def test_every_verb_has_wrong_input() -> None:
    assert list(WRONG) == ["", *cli.VERBS], "a new verb needs cases"
    assert all(WRONG.values())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((*filter(None, [verb]), *given), message, id=f"{verb} {' '.join(given)[:60]}".strip())
        for verb, cases in WRONG.items()
        for given, message in cases
    ],
)
def test_wrong_input_is_one_line(capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(capfd, *(str(tiny_model_path()) if one == MODEL else one for one in arguments))


@pytest.mark.parametrize("verb", cli.VERBS)
def test_an_unknown_option_and_a_name_of_two_lines_are_refused(capfd: pytest.CaptureFixture[str], verb: str) -> None:
    refused(capfd, verb, "--no-such-option")
    refused(capfd, verb, "no\nsuch")
