"""The optional package: clear words without it, nothing written with it, and the profile and script that go along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from env_service.environments.bfcl import package
from env_service.environments.bfcl.package import INSTALL_LINE

ROOT = Path(__file__).parents[4]
FOLDER = Path(package.__file__).parent


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that has not imported the package; variables are set, TMPDIR and BFCL_* of ours are
    not passed on."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BFCL_")} | variables
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.service
def test_without_the_package_the_class_imports_and_its_use_names_the_install_line() -> None:
    code = """
import sys
sys.modules["bfcl_eval"] = None
from env_service.environments.bfcl.env import BfclEnv
for use in (lambda: BfclEnv.get_query_list("train"), lambda: BfclEnv("multi_turn_base_0", "i")):
    try:
        use()
    except RuntimeError as error:
        print(error)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(INSTALL_LINE) == 2


@pytest.mark.service
def test_loading_leaves_nothing_behind_and_no_variable_changed(tmp_path: Path) -> None:
    code = """
import os, sys
made = []
def note(event, args):
    if event == "os.mkdir" or (event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | \
os.O_CREAT)):
        made.append(str(args[0]))
sys.addaudithook(note)
from env_service.environments.bfcl.package import load_package
assert len(load_package().tasks) == 800
assert "BFCL_PROJECT_ROOT" not in os.environ
elsewhere = [path for path in made if not path.startswith((os.environ["TMPDIR"], "/dev/null"))]
assert made and elsewhere == [], elsewhere
"""
    done = python(code, TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.service
def test_a_project_root_that_the_owner_chose_is_used(tmp_path: Path) -> None:
    done = python(
        "from env_service.environments.bfcl.package import load_package; load_package()",
        BFCL_PROJECT_ROOT=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "result").is_dir()


@pytest.mark.service
def test_a_checkout_is_taken_from_the_servers_variable(tmp_path: Path) -> None:
    (tmp_path / "bfcl_eval").mkdir()
    (tmp_path / "bfcl_eval" / "__init__.py").write_text("raise ImportError('the checkout was asked')")
    code = "from env_service.environments.bfcl.env import BfclEnv; BfclEnv.get_query_list()"
    assert "the checkout was asked" in python(code, BFCL_ROOT=str(tmp_path)).stderr
    missing = python(code, BFCL_ROOT=str(tmp_path / "no")).stderr
    assert "RuntimeError: BFCL_ROOT=" in missing and "holds no `bfcl_eval` package" in missing


@pytest.mark.service
def test_a_broken_load_is_not_remembered(tmp_path: Path) -> None:
    code = f"""
import os
from env_service.environments.bfcl.env import BfclEnv
os.environ["BFCL_ROOT"] = {str(tmp_path)!r}
try:
    BfclEnv.get_query_list()
except RuntimeError:
    del os.environ["BFCL_ROOT"]
print(len(BfclEnv.get_query_list("full")))
"""
    done = python(code)
    assert done.stdout == "800\n", done.stderr


@pytest.mark.service
def test_threads_that_are_first_to_use_the_package_get_the_results_of_later_ones() -> None:
    code = """
import threading
from env_service.environments.bfcl.env import BfclEnv
ids = [f"multi_turn_base_{number}" for number in (10, 27, 29, 49, 57, 59, 100, 150)]
call = {"role": "assistant", "content": '<tool_call>{"name": "pwd", "arguments": {}}</tool_call>'}
start, wrong = threading.Barrier(len(ids)), []
def work(task_id):
    start.wait()
    for _ in range(20):
        text = BfclEnv(task_id, "i").step(call)["state"][0]["content"]
        if "current_working_directory" not in text and "name 'pwd' is not defined" not in text:
            wrong.append(text)
threads = [threading.Thread(target=work, args=(task_id,)) for task_id in ids]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong)
"""
    done = python(code)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_every_operation_of_the_profile_is_a_function_of_the_package() -> None:
    profile = json.loads((FOLDER / "profile.json").read_text())
    documented = {doc["name"] for task in package.load_package().tasks.values() for doc in task.tools}
    for entity in profile["entities"]:
        assert {operation["name"] for operation in entity["opts"]} <= documented
