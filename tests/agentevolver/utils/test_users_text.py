"""Texts of users are data: any id, any folder's name, any number behind a colon."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentevolver.config.layers import quoted, read_overrides, read_yaml
from agentevolver.config.trees import select
from agentevolver.launcher import stack
from agentevolver.launcher.options import Options, parse
from agentevolver.launcher.records import temp_dir_for
from agentevolver.llm.message_logs import find_logs
from agentevolver.llm.settings import EndpointSettings
from agentevolver.trainer.monitor.results import spent
from agentevolver.trainer.preload import CLIENT, executable_of, write_executable
from agentevolver.utils.experiments import find_experiment
from agentevolver.utils.names import system_name
from agentevolver.utils.net import http_url, take_url_from
from agentevolver.utils.processes import is_plain
from env_service.hosting.service import _INSTANCE_ID
from env_service.http.app import StartError, bind
from experience_manager.settings import RemeSettings
from task_manager.settings import ServiceAccess
from tests.agentevolver.launcher.fakes import ray_section

FOLDERS = ["my projects", "o'neil", 'a"b', "a\\b", "$HOME", "`id`", "a?b", "a*b", "a%41b", "a#b", "[x]", "{a,b}", "a;b"]
FOLDERS += ["a&b", "(1)", "a=b", "~a", "!a", "wörk", "实验", "e\u0301 😀", "-n", "a|b", "a<b>", "a\nb"]


@given(st.lists(st.text(max_size=300), unique=True, max_size=4))
def test_every_id_has_a_name_of_its_own_that_the_service_and_file_systems_take(ids: list[str]) -> None:
    names = [system_name(text) for text in ids]
    assert len(set(names)) == len(ids)
    for name in names:
        assert _INSTANCE_ID.fullmatch(f"{name}-q-{'f' * 32}") and "/" not in name and len(name) <= 100
    assert system_name("calc.2.17") == "calc.2.17", "a simple id stays readable"


@pytest.mark.parametrize("name", ["007", "1e5", "0x1f", "1_000", "12:30:00", "yes", "off", ".5", "2024-01-01", "NaN"])
def test_an_experiments_name_stays_what_was_typed(name: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(f"trainer: {{experiment_name: {name}, project_name: {name}}}\n")
    for key in ("trainer.experiment_name", "trainer.project_name"):
        assert select(read_yaml(tmp_path / "e.yaml"), key) == name == select(read_overrides([f"{key}={name}"]), key)


@pytest.mark.parametrize("name", ["a: b", "a #b", "{a", "[a]", "*a", "!a", "a'b", "@a", "- a", "实验 1"])
def test_a_name_on_the_command_line_is_no_yaml(name: str) -> None:
    assert read_overrides([f"trainer.experiment_name={name}"]) == {"trainer": {"experiment_name": name}}
    assert read_overrides(["trainer.experiment_name=null"]) == {"trainer": {"experiment_name": None}}


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1).filter(lambda text: "$" not in text)
)
def test_a_path_in_an_override_is_read_as_it_is(path: str) -> None:
    assert read_overrides([f"experiment.root={quoted(path)}"]) == {"experiment": {"root": path}}


def argv_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    monkeypatch.setattr(sys, "executable", str(folder / ".venv" / "bin" / "python"))
    temp_dir = temp_dir_for("1")
    return stack.ray_head(ray_section(), temp_dir=temp_dir / "ray", logs=folder, env={}).spec.argv


@pytest.mark.thorough
@pytest.mark.parametrize("name", FOLDERS)
def test_below_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's command line, the nursery's script, databases, logs, experiments and arguments."""
    folder = tmp_path / name
    (folder / "p" / "launches").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{name}"[:16])
    assert all(map(is_plain, (argv_below(folder, monkeypatch)[0], str(temp_dir_for("1")))))
    (folder / "python").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (folder / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    write_executable(tmp_path / "nursery")
    said = subprocess.run([executable_of(tmp_path / "nursery"), "x y"], capture_output=True, text=True, check=True)
    assert said.stdout == f"-I|-S|{CLIENT}|{folder / 'python'}|{tmp_path / 'nursery'}|x y|"
    with closing(sqlite3.connect(folder / "usage.sqlite")) as db:
        db.execute("CREATE TABLE usage AS SELECT '' role, 1 calls, 2 prompt_tokens, 3 completion_tokens, 4.0 cost")
        db.commit()
    assert spent(folder / "usage.sqlite") is not None
    assert find_logs([str(folder / "usage.sqlite")]) == [folder / "usage.sqlite"]
    assert find_experiment("p", tmp_path) == folder / "p" == find_experiment(f"{name}/p", tmp_path)
    (folder / "e.yaml").touch()
    assert parse([str(folder / "e.yaml"), "a.b=1"]) == Options(conf=folder / "e.yaml", overrides=("a.b=1",))


WRONG = ["0", "65536", "99999", "-1", "8080x", "1e3", " 80", "٨٠", "8080:1", "8080 "]


@pytest.mark.parametrize("port", WRONG)
def test_a_port_that_is_none_is_refused_where_it_is_read(port: str) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    for model, key in ((ServiceAccess, "env_url"), (RemeSettings, "base_url"), (EndpointSettings, "base_url")):
        with pytest.raises(ValidationError, match="with a port from 1 to 65535"):
            model(**{key: url})
        assert getattr(model(**{key: "http://[::1]:65535"}), key) == "http://[::1]:65535"
    for other in ("http://", "ftp://a", "127.0.0.1:80", "", "http://[::1:80"):
        with pytest.raises(ValueError, match="must be http"):
            http_url(other)
    with pytest.raises(StartError, match="a port is a number from 0 to 65535; choose another --port"):
        bind("127.0.0.1", 99999)


def test_the_second_on_a_machine_takes_the_next_port() -> None:
    taken = [take_url_from("env_service.env_url", "http://127.0.0.1:12345/v1") for _ in range(3)]
    assert len(set(taken)) == 3 and all(url.endswith("/v1") for url in taken)
    assert os.sep not in taken[0].removeprefix("http://").removesuffix("/v1")
