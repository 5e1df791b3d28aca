"""One short run of the whole stack that several tests look at."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentevolver.utils.processes import attached
from tests.e2e.listening import Listener, answers, http_answers, listeners
from tests.e2e.runs import SMALL, Launched, launch
from tests.e2e.whole_loop import WANTED
from tests.strangers import carrying, readable

SECRETS = {name: f"canary-{name}" for name in ("ENV_SERVICE_TOKEN", "OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY")}

# Of vLLM's server, beside what its own key would guard.
ROUTES = (
    *(
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/chat/completions",
        "/invocations",
        "/tokenize",
        "/detokenize",
        "/ping",
        "/version",
    ),
    *(
        "/load",
        "/pause",
        "/resume",
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/scale_elastic_ep",
        "/openapi.json",
    ),
)


@dataclass
class Finished:
    """A run that went to its end, what it left outside of its folder, and what strangers were told while it trained.

    `carried` and `exposed` are where its secrets were seen then: processes with their variables, and files; among these
    are also segments of shared memory that others may open.
    """

    launched: Launched
    returncode: int
    left_behind: set[str]
    carried: dict[str, set[str]] = field(default_factory=dict)
    exposed: set[Path] = field(default_factory=set)
    heard: dict[Listener, str] = field(default_factory=dict)
    routes: dict[str, set[int]] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.launched.directory


@pytest.fixture(scope="session")
def basic_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    steps = ("trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.test_freq=3")
    launched = Launched(tmp_path_factory.mktemp("basic"), "exact", (*SMALL, *steps), env=SECRETS)
    try:
        launched.wait_for(launched.steps_done, "step")
        heard = answers(listeners(launched))
        (server,) = (one for one in heard if (one.process, one.protocol) == ("ray::vLLMHttpServer", "http"))
        routes = http_answers(server, *ROUTES)
        carried = carrying(launched.run_id, SECRETS.values())
        exposed = readable([launched.traces.folder, launched.directory, Path("/dev/shm")], SECRETS.values())
        exposed |= {path for path in attached(launched.run_id) if path.exists() and path.stat().st_mode & 0o077}
        returncode = launched.wait()
        yield Finished(launched, returncode, launched.left_behind(), carried, exposed, heard, routes)
    finally:
        launched.end()


@pytest.fixture(scope="session")
def whole_loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    launched = launch(tmp_path_factory.mktemp("loop"), "made", *WANTED, "trainer.save_freq=-1")
    try:
        returncode = launched.wait()
        yield Finished(launched, returncode, launched.left_behind())
    finally:
        launched.end()
