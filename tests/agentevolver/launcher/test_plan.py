"""From options and configuration to what is started, without starting anything."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from agentevolver.config.checks import load
from agentevolver.launcher.experiment import START, Presence
from agentevolver.launcher.options import Options
from agentevolver.launcher.plan import Plan, as_yaml, check_services, make_plan, resolve_config
from agentevolver.launcher.records import RunRegistry, experiment_lock
from agentevolver.launcher.run import private_files
from agentevolver.utils.errors import UsageError
from agentevolver.utils.net import ON_LOOPBACK
from agentevolver.utils.secrets import SECRETS
from tests.agentevolver.launcher.fakes import FakeConfiguration, env_section, ray_section

CONF = Options(conf=Path("x.yaml"))


@pytest.fixture
def configuration(tmp_path: Path) -> FakeConfiguration:
    return FakeConfiguration(experiment_dir=tmp_path / "experiments" / "p" / "e")


def plan(configuration: FakeConfiguration, options: Options = CONF, presence: Presence = START) -> Plan:
    return make_plan(options, configuration, presence, RunRegistry(configuration.experiment_dir / "run"))


def test_rays_door_is_locked_unless_the_user_decided_about_it(
    configuration: FakeConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    made = plan(configuration)
    for spec in made.services:
        assert spec.env["RAY_AUTH_MODE"] == "token" and spec.env["RAY_AUTH_TOKEN_PATH"] == str(made.token)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = plan(configuration)
    assert made.token is None and "RAY_AUTH_MODE" not in made.services[0].env


def test_a_cluster_of_ones_own_is_on_loopback_alone(
    configuration: FakeConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    made = plan(configuration)
    assert made.job is not None and "--node-ip-address=127.0.0.1" in made.services[0].argv
    for spec in (*made.services, made.job):
        assert ON_LOOPBACK.items() <= spec.env.items()
    joined = plan(replace(configuration, ray=ray_section(address="10.0.0.1:6379")))
    assert not ON_LOOPBACK.keys() & joined.services[0].env.keys(), "its nodes talk to one another"


def test_a_cluster_that_is_joined_is_not_started(configuration: FakeConfiguration) -> None:
    made = plan(replace(configuration, ray=ray_section(address="10.0.0.1:6379")))
    assert [spec.name for spec in made.services] == ["env_service"]
    assert "--ray-address=10.0.0.1:6379" in made.services[0].argv
    assert made.temp_dir is None and made.token is None
    assert "TMPDIR" not in made.services[0].env, "its other nodes do not have the folder"
    assert "RAY_AUTH_MODE" not in made.services[0].env, "a cluster that was there before has its own rules"


def test_a_service_that_runs_is_used(configuration: FakeConfiguration) -> None:
    made = plan(configuration, presence=Presence("declared as external: a service"))
    assert [spec.name for spec in made.services] == ["ray"]
    assert "uses the environment service at http://127.0.0.1:8080, declared as external: a service" in made.describe()


@pytest.mark.environment("pocket", "gymnasium", "bfcl")
def test_a_mixtures_environments_are_all_served_and_each_is_looked_up(configuration: FakeConfiguration) -> None:
    given = load(None, ["device=cpu", "env_service.env_params={root: /data}", "data.val_filter={root: /more}"]).settings
    section = env_section(env_type={"pocket": 2, "gymnasium": 1})
    mixture = replace(configuration, settings=given, env_service=section)
    made = plan(mixture, Options(conf=Path("x"), services=("bfcl", "mine", "pocket"), env_modules=("mine=pkg.mod:C",)))
    assert [item for item in made.services[1].argv if item.startswith("--env=")] == [
        "--env=pocket",
        "--env=gymnasium",
        "--env=bfcl",
        "--env=mine",
    ]
    assert {"--env-module=mine=pkg.mod:C", "--path=/data", "--path=/more"} <= {*made.services[1].argv}
    check_services(CONF, mixture)
    with pytest.raises(UsageError, match="did you mean 'pocket'"):
        check_services(CONF, replace(configuration, env_service=env_section(env_type={"poket": 2, "gymnasium": 1})))


@pytest.mark.parametrize("url", ["http://127.0.0.1", "https://127.0.0.1:8080", "http://127.0.0.1:8080/prefix"])
def test_a_local_url_at_which_nothing_can_be_started_is_refused(url: str, configuration: FakeConfiguration) -> None:
    with pytest.raises(UsageError, match=r"the URL must be http://127\.0\.0\.1:PORT"):
        plan(replace(configuration, env_service=env_section(env_url=url)))


def test_the_written_configuration_is_resolved_but_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    tree = {"a": 1, "b": "${a}", "llm": {"api_key": "${oc.env:JUDGE_KEY}", "urls": ["${oc.env:JUDGE_KEY,x}", "${a}"]}}
    text = as_yaml(resolve_config(OmegaConf.create(tree)))
    assert "sk-very-secret" not in text
    read = OmegaConf.create(text)
    assert read.b == 1 and read.llm.urls[1] == 1
    assert read.llm.api_key == "sk-very-secret", "the main job still finds it in the environment"


def test_secrets_are_withheld_from_every_process_but_the_main_job_and_the_users_own(
    configuration: FakeConfiguration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("HF_TOKEN", "a-secret")
    monkeypatch.delenv("HF_TOKEN_PATH", raising=False)
    for name, value in {"PATH": str(tmp_path), "SCRIPT": "true", "HEALTH_URL": "http://127.0.0.1:1/health"}.items():
        monkeypatch.setenv(f"MEMO_{name}", value)
    made = plan(
        replace(configuration, ray=ray_section(preload=True)), Options(conf=Path("x"), services=("memo", "logview"))
    )
    assert {"OPENAI_API_KEY", "HF_TOKEN"} <= {*made.secrets}
    withheld = {spec.name: spec.withheld for spec in made.services}
    assert withheld.pop("memo") == ()
    assert withheld.pop("ray") == withheld.pop("preload") == (*made.secrets, "CUDA_VISIBLE_DEVICES")
    assert set(withheld) == {"env_service", "logview"} and set(withheld.values()) == {made.secrets}
    assert made.job is not None and not made.job.withheld
    told = {spec.name: spec.env.get(SECRETS) for spec in (*made.services, made.job)}
    folder = str(configuration.experiment_dir / "run" / f"{made.run_id}.secrets")
    assert told == {
        "preload": None,
        "ray": None,
        "env_service": folder,
        "memo": folder,
        "logview": folder,
        "main": folder,
    }
    assert made.services[0].env["HF_TOKEN_PATH"] == f"{folder}/HF_TOKEN"
    assert "a-secret" not in str([*made.services, made.job])


def test_environments_see_the_secrets_that_the_configuration_names(
    configuration: FakeConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOOL_KEY", "a-secret")
    assert not [item for item in plan(configuration).services[-1].argv if item.startswith("--pass-env")]
    made = plan(replace(configuration, env_service=env_section(pass_env=("MY_TOOL_KEY", "ANOTHER"))))
    service = made.services[-1]
    assert [item for item in service.argv if item.startswith("--pass-env")] == [
        "--pass-env=MY_TOOL_KEY",
        "--pass-env=ANOTHER",
    ]
    assert "MY_TOOL_KEY" in service.withheld and service.env[SECRETS].endswith(f"{made.run_id}.secrets")


@pytest.mark.parametrize("names", [("HF_TOKEN",), ("HUGGING_FACE_HUB_TOKEN",), ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")])
def test_the_hubs_token_is_found_by_either_name(
    names: tuple[str, ...], configuration: FakeConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", "/of/the/user")
    assert "HF_TOKEN_PATH" not in plan(configuration).services[0].env
    for name in names:
        monkeypatch.setenv(name, "a-secret")
    made = plan(configuration)
    folder = configuration.experiment_dir / "run" / f"{made.run_id}.secrets"
    assert {spec.env["HF_TOKEN_PATH"] for spec in made.services} == {str(folder / names[0])}


def test_files_are_the_owners_alone_unless_shared(configuration: FakeConfiguration) -> None:
    assert not plan(configuration).shared_files
    shared = OmegaConf.merge(configuration.config, {"experiment": {"shared_files": True}})
    assert isinstance(shared, DictConfig) and plan(replace(configuration, config=shared)).shared_files


@pytest.mark.parametrize(("shared", "file", "folder"), [(False, 0o600, 0o700), (True, 0o640, 0o750)])
def test_what_is_written_while_a_plan_is_carried_out_has_the_modes_that_were_asked_for(
    shared: bool, file: int, folder: int, configuration: FakeConfiguration
) -> None:
    made = replace(plan(configuration), shared_files=shared)
    before = os.umask(0o027)
    try:
        with (
            private_files(made),
            experiment_lock(made.experiment_dir, RunRegistry(configuration.experiment_dir / "run")),
        ):
            (made.experiment_dir / "written").touch()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (made.experiment_dir / "written").stat().st_mode & 0o777 == file
    assert made.experiment_dir.stat().st_mode & 0o777 == folder
    assert made.experiment_dir.parent.stat().st_mode & 0o777 == 0o750, "other experiments may lie beside this one"
