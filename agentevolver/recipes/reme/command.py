"""`python -m experience_manager serve`."""

from __future__ import annotations

import argparse
import socket
import sys
from urllib.parse import urlsplit

from agentevolver.llm import LLM, LLMError
from agentevolver.llm.endpoint import served_model
from agentevolver.llm.settings import OFFLINE, POLICY, LLMSettings, Role
from agentevolver.recipes.reme.client import TOKEN_VARIABLE
from agentevolver.recipes.reme.service import ExperienceService, create_app
from agentevolver.recipes.reme.service import serve as run
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import Access
from experience_manager.errors import ExperienceError
from experience_manager.pool import Configuration

_NAME_ONE = (
    "name a model: --set llm.base_url=https://HOST/v1 --set llm.model=NAME --set llm.api_key_env=VARIABLE, or "
    "--settings FILE (llm)"
)
_CONNECT_S = 2.0


def serve(options: argparse.Namespace, configuration: Configuration) -> int:
    try:
        access = Access(options.host, secret(TOKEN_VARIABLE), TOKEN_VARIABLE)
    except ValueError as error:
        raise ExperienceError(f"--host {error}") from error
    with configuration.open_store(create=True) as store:
        settings, llm = configuration.fitted(store), LLM(configuration.llm)
        problem = summariser_problem(configuration.llm)
        told = (
            f"no summariser, so /summary_task_memory fails: {problem}"
            if problem
            else f"summariser: {configuration.author}"
        )
        print(told, file=sys.stderr, flush=True)
        service = ExperienceService(settings, store, configuration.encoder(store), llm, author=configuration.author)
        run(create_app(service, access), options.host, options.port, on_exit=llm.aclose)
    return 0


def summariser_problem(llm: LLMSettings) -> str | None:
    """Return what can be seen to be missing for a summariser, and what to do, or None; nothing is asked of a model."""
    endpoint = llm.endpoint(Role.SUMMARISER)
    if endpoint.base_url == POLICY:
        return f"llm.base_url is `policy`, the model of a training run, which is not served here; {_NAME_ONE}"
    if endpoint.base_url == OFFLINE:
        if _listens(llm.teacher.url):
            return None
        start = " ".join(("python", *llm.teacher.arguments()))
        return (
            f"llm.base_url is `offline`, and nothing listens at {llm.teacher.url!r}; start it ({start}), or {_NAME_ONE}"
        )
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
