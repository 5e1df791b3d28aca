from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from agentevolver.trainer.transport import worker
from agentevolver.utils.secrets import SECRETS, write_secrets


def test_a_worker_has_its_proxy_also_when_it_is_forked_from_what_has_closed_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(SECRETS, str(tmp_path / "kept"))
    write_secrets(tmp_path / "kept", {"HTTPS_PROXY": "http://me:word@proxy:80", "OPENAI_API_KEY": "k"})
    worker.close_off()
    module, _, name = worker.HOOK.rpartition(".")
    getattr(importlib.import_module(module), name)()
    assert os.environ["HTTPS_PROXY"] == "http://me:word@proxy:80" and "OPENAI_API_KEY" not in os.environ
