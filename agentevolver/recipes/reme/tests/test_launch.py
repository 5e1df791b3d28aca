"""The service beside a run."""

from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.launcher.experiment import START
from agentevolver.launcher.options import Options
from agentevolver.launcher.plan import Plan, make_plan
from agentevolver.launcher.records import RunRegistry
from agentevolver.utils.errors import UsageError
from tests.agentevolver.launcher.fakes import FakeConfiguration

ASKING = Options(conf=Path("x"), services=("reme",))


@pytest.fixture(autouse=True)
def _undescribed(monkeypatch):
    for part in ("PATH", "SCRIPT", "HEALTH_URL"):
        monkeypatch.delenv(f"REME_{part}", raising=False)


def plan(folder: Path, *written: str, options: Options = ASKING) -> Plan:
    base = ("device=cpu", "env_service.env_type=pocket", f"experiment.dir={folder}")
    settings = load(None, [*base, *written]).settings
    made = FakeConfiguration(experiment_dir=folder, settings=settings)
    return make_plan(options, made, START, RunRegistry(folder / "run"))


def http(url: str) -> tuple[str, ...]:
    return ("exp_manager.backend=http", f"exp_manager.reme.base_url={url}")


def test_it_is_ours_unless_the_users_own_is_described(tmp_path, monkeypatch):
    made = plan(tmp_path, *http("http://127.0.0.1:8123"))
    assert [spec.name for spec in made.services] == ["ray", "env_service", "teacher", "reme"], (
        "it asks the teacher for summaries"
    )
    ours = made.services[-1]
    command = ("-m", "experience_manager", "serve", f"--config={made.config_path}", "--host=127.0.0.1", "--port=8123")
    assert ours.argv[1:] == command and ours.env["OMP_NUM_THREADS"] == "1"
    assert ours.health_urls == ("http://127.0.0.1:8123/health",) and ours.shared
    monkeypatch.setenv("REME_PATH", str(tmp_path))
    monkeypatch.setenv("REME_SCRIPT", "reme backend=http")
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    made = plan(tmp_path, *http("http://127.0.0.1:8123"))
    assert [spec.name for spec in made.services] == ["ray", "env_service", "reme"]
    theirs = made.services[-1]
    assert theirs.argv == ("bash", "-c", "reme backend=http") and theirs.withheld == ()
    assert theirs.health_urls == ("http://127.0.0.1:8123/health",)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ((), r"would not use: .* set exp_manager\.backend=http"),
        (http("http://10.0.0.1:8001"), r"reme\.base_url=http://10\.0\.0\.1:8001 must be http://127\.0\.0\.1:PORT"),
        ((*http("http://127.0.0.1:8123"), "llm.base_url=policy"), "--with-reme: llm.roles.summariser.base_url"),
    ],
)
def test_one_that_nobody_would_ask_or_that_cannot_be_started_is_refused(tmp_path, written, words):
    with pytest.raises(UsageError, match=words):
        plan(tmp_path, *written)


def test_alone_it_needs_no_cluster(tmp_path):
    made = plan(tmp_path, options=Options(services=("reme",)))
    assert [spec.name for spec in made.services] == ["teacher", "reme"] and made.temp_dir is None
