"""Whether the summariser that a configuration names can be asked, said in one line before anybody needs it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from agentevolver.llm.endpoint import served_model
from agentevolver.llm.errors import LLMError
from agentevolver.llm.settings import OFFLINE, POLICY, LLMSettings, Role

_NAME_ONE = (
    "name a model: --set llm.base_url=https://HOST/v1 --set llm.model=NAME --set llm.api_key_env=VARIABLE, or "
    "--settings FILE (llm)"
)
_CONNECT_S = 2.0


def summariser_problem(llm: LLMSettings) -> str | None:
    """Return what is missing for a summariser, and what to do, None if there is nothing to be seen.

    Nothing is asked of a model: a key that is not set, and an endpoint on this machine that nobody listens at, are what
        can be seen.
    """
    endpoint = llm.endpoint(Role.SUMMARISER)
    if endpoint.base_url == POLICY:
        return f"llm.base_url is `policy`, the model of a training run, which is not served here; {_NAME_ONE}"
    if endpoint.base_url == OFFLINE:
        start = "start it (python -m agentevolver.builtin.teacher; it knows the pocket world alone)"
        silent = (
            f"the built-in teacher, llm.base_url `offline`, does not listen at {llm.teacher.url}; {start}, or "
            f"{_NAME_ONE}"
        )
        return None if _listens(llm.teacher.url) else silent
    try:
        served_model(Role.SUMMARISER, endpoint)
    except LLMError as error:
        return str(error)
    if urlsplit(endpoint.base_url).hostname in ("localhost", "127.0.0.1", "::1") and not _listens(endpoint.base_url):
        return f"nothing listens at llm.base_url {endpoint.base_url}; start {endpoint.model} there, or {_NAME_ONE}"
    return None


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
