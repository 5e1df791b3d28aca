"""`python -m experience_manager serve`."""

from __future__ import annotations

import argparse
import sys

from agentevolver.llm import LLM, LLMError
from agentevolver.llm.endpoint import served_model
from agentevolver.llm.settings import OFFLINE, POLICY, Role
from agentevolver.recipes.reme.client import TOKEN_VARIABLE
from agentevolver.recipes.reme.service import ExperienceService, create_app
from agentevolver.recipes.reme.service import serve as run
from agentevolver.utils.secrets import secret
from agentevolver.utils.web.access import Access
from experience_manager.errors import ExperienceError
from experience_manager.pool import Configuration


def serve(options: argparse.Namespace, configuration: Configuration) -> int:
    try:
        access = Access(options.host, secret(TOKEN_VARIABLE), TOKEN_VARIABLE)
    except ValueError as error:
        raise ExperienceError(f"--host {error}") from error
    if options.port not in range(65536):
        raise ExperienceError(f"--port {options.port}: a port is a number from 0 to 65535")
    with configuration.open_store(create=True) as store:
        settings, llm = configuration.fitted(store), LLM(configuration.llm)
        print(_told(configuration), file=sys.stderr, flush=True)
        service = ExperienceService(
            settings, store, configuration.encoder(store), llm, author=configuration.author, dump_dir=options.dump_dir
        )
        run(create_app(service, access), options.host, options.port, on_exit=llm.aclose)
    return 0


def _told(configuration: Configuration) -> str:
    """Return a line with the summariser's model, or with what its configuration lacks. No model is called."""
    endpoint = configuration.llm.endpoint(Role.SUMMARISER)
    try:
        if endpoint.base_url == POLICY:
            return "no summariser: llm.base_url is `policy`, the model of a training run; --set llm.base_url=URL"
        if endpoint.base_url != OFFLINE:
            served_model(Role.SUMMARISER, endpoint)
    except LLMError as error:
        return f"no summariser: {error}"
    return f"summariser: {configuration.author}"
