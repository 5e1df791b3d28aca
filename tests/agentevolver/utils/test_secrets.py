"""Secrets as files: what counts as one, who finds it, and what a process that forgot one still shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentevolver.utils.errors import UsageError
from agentevolver.utils.secrets import (
    LIBRARIES,
    SECRETS,
    adopt_secrets,
    read_dotenv,
    remove_secrets,
    secret,
    secrets_in,
    write_secrets,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SECRETS, str(tmp_path / "kept"))
    monkeypatch.delenv("SOME_API_KEY", raising=False)
    return tmp_path / "kept"


def test_secrets_are_told_by_name_by_the_configuration_and_by_a_password_in_an_address() -> None:
    environ = {
        "OPENAI_API_KEY": "k",
        "DASHSCOPE_KEY": "k",
        "aws_secret_access_key": "k",
        "HF_TOKEN": "t",
        "MY_LLM": "k",
        "HTTPS_PROXY": "http://me:word@proxy:80",
        "EMPTY_API_KEY": "",
        "PATH": "/opt/sk-something-long/bin",
        "HTTP_PROXY": "http://proxy:80",
        "VLLM_MAX_TOKENS": "10",
        "RAY_AUTH_TOKEN_PATH": "/a/file",
        "TOKENIZERS_PARALLELISM": "true",
        "SSH_AUTH_SOCK": "/a/socket",
        "RAY_AUTH_TOKEN": "which each process of Ray must have",
        "RAY_REDIS_PASSWORD": "likewise",
        "PWD": "/a/folder",
        "OLDPWD": "/a/folder",
        SECRETS: "/a/folder",
    }
    found = {"OPENAI_API_KEY", "DASHSCOPE_KEY", "aws_secret_access_key", "HF_TOKEN", "MY_LLM", "HTTPS_PROXY"}
    assert set(secrets_in(environ, ["MY_LLM", "EMPTY_API_KEY"])) == found


def test_a_secret_is_the_variable_else_the_file_else_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert secret("SOME_API_KEY") == "", "the folder need not be there: another node of a cluster"
    write_secrets(folder, {"SOME_API_KEY": " from the file\n"})
    assert secret("SOME_API_KEY") == "from the file"
    assert secret("ANOTHER_KEY") == secret("") == ""
    monkeypatch.setenv("SOME_API_KEY", "from the variable")
    assert secret("SOME_API_KEY") == "from the variable"
    monkeypatch.delenv("SOME_API_KEY")
    monkeypatch.delenv(SECRETS)
    assert secret("SOME_API_KEY") == "" and secret("SOME_API_KEY", str(folder)) == "from the file"


def test_the_owner_alone_may_read_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        write_secrets(folder, {"SOME_API_KEY": "k"})
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "SOME_API_KEY").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_secrets(folder, {})
    remove_secrets(folder)
    remove_secrets(folder)
    assert not folder.exists()


def test_adopting_sets_what_is_not_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_secrets()
    write_secrets(folder, {"SOME_API_KEY": "file", "OTHER_API_KEY": "file"})
    monkeypatch.setenv("OTHER_API_KEY", "variable")
    monkeypatch.setenv("SOME_API_KEY", "")
    monkeypatch.delenv("SOME_API_KEY")
    adopt_secrets()
    assert (os.environ["SOME_API_KEY"], os.environ["OTHER_API_KEY"]) == ("file", "variable")


def test_libraries_get_their_proxies_back_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("HTTPS_PROXY", "http_proxy", "ALL_PROXY", "HF_ENDPOINT")
    for name in (*given, "HF_TOKEN", "MY_HTTPS_PROXY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    write_secrets(folder, dict.fromkeys((*given, "HF_TOKEN", "MY_HTTPS_PROXY", "SOME_API_KEY"), "http://me:word@there"))
    adopt_secrets(LIBRARIES)
    assert {path.name for path in folder.iterdir() if path.name in os.environ} == set(given)


def test_a_process_that_forgot_shows_nothing_to_the_kernel_and_to_its_children() -> None:
    script = """
import os, subprocess, psutil
from agentevolver.utils.secrets import forget
forget(["SOME_API_KEY", "NOT_THERE", "SET_LATER_KEY"])
shown = open("/proc/self/environ", "rb").read()
assert b"a-secret" not in shown and b"BEFORE=1" in shown.split(b"\\0") and b"AFTER=2" in shown.split(b"\\0"), shown
assert psutil.Process().environ()["AFTER"] == "2", "who reads it up to two zero bytes finds what stands behind"
assert "SOME_API_KEY" not in os.environ and os.environ["AFTER"] == "2"
assert "a-secret" not in subprocess.run(["env"], capture_output=True, text=True).stdout
"""
    environ = {"BEFORE": "1", "SOME_API_KEY": "a-secret", "AFTER": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"MYKEY=abc\n", None),
        (b"export MYKEY='abc' # ours", None),
        (b"\xef\xbb\xbfMYKEY=abc\n", None),
        (b"\xef\xbb\xbf\r\nMYKEY=abc\r\n", None),
        (b"A=1\rMYKEY=abc\r", None),
        ("# clé\nMYKEY=abc\n".encode("utf-16"), None),
        (b"\xfe\xff" + "MYKEY=abc\r\n".encode("utf-16-be"), None),
        ("# clé\nMYKEY=abc\n".encode(), None),
        (b"", "MYKEY"),
        (b"MYKEY=abc\n# cl\xe9\n", "byte 0xe9"),
        ("MYKEY=abc\n".encode("utf-16-le"), "line 1"),
        (b"OTHER=1\nMY KEY = abc\n", "line 2"),
        (b"MYKEY=a\0bc\n", "line 1"),
        (b"\xff\xfeM", "truncated"),
        (b'{"MYKEY": "abc"}', "line 1"),
    ],
)
def test_a_dotenv_of_another_program_is_read_or_refused_in_a_line(
    written: bytes, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    (tmp_path / ".env").write_bytes(written)
    try:
        read_dotenv(tmp_path)
        assert os.environ.get("MYKEY") == (None if told else "abc")
    except UsageError as error:
        assert told is not None and told in str(error) and "abc" not in str(error) and "\n" not in str(error)
