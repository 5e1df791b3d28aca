"""What rounds add to a launch, decided without starting anything."""

import socket
import sys
from pathlib import Path

import pytest

from agentevolver.config import devices
from agentevolver.config.checks import Resolved, load
from agentevolver.launcher import accelerator
from agentevolver.launcher.accelerator import examine, gpu_memory
from agentevolver.launcher.experiment import START, check_checkpoint
from agentevolver.launcher.options import Options
from agentevolver.launcher.plan import Plan, make_plan
from agentevolver.launcher.records import RunRegistry
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.trainer.preload import SOCKET, executable_of
from agentevolver.utils.errors import LaunchError, UsageError

CONF = Options(conf=Path("x.yaml"))
TRAINER = Options(conf=Path("x"), target="agentevolver.trainer.job.main")


def rounds(folder: Path, *overrides: str, device: str = "cpu") -> Resolved:
    common = (f"device={device}", f"experiment.root={folder}", "env_service.env_type=calc", "ray.dashboard=false")
    return load(None, [*common, "ray.preload=false", "recipes.agent0.enable=true", *overrides])


def plan(configuration: Resolved, options: Options = CONF) -> Plan:
    return make_plan(options, configuration, START, RunRegistry(configuration.experiment_dir / "run"))


def test_rounds_have_a_main_job_and_a_player_of_their_own(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made = plan(rounds(tmp_path, f"recipes.agent0.url=http://127.0.0.1:{port}"))
    by_name = {spec.name: spec for spec in made.services}
    player, told = by_name["player"], made.config["recipes"]["agent0"]["url"]
    chosen = told.rpartition(":")[2]
    expected = (
        "-m",
        "agentevolver.trainer.job.frozen",
        "--config",
        str(made.config_path),
        "--port",
        chosen,
        "--gpus",
        "0",
    )
    assert int(chosen) != port and player.argv[1:] == expected
    assert player.health_urls == (f"{told}/healthz",) and player.says_who and player.needed and player.restarts > 0
    served = [item for item in by_name["env_service"].argv if item.startswith("--env=")]
    assert served == ["--env=calc", "--env=propose"]
    assert made.job is not None and made.job.argv[2] == "agentevolver.recipes.agent0"
    assert player.env == made.job.env, "on a CPU nothing is split"


def test_the_player_is_forked_as_the_main_job_is(tmp_path: Path) -> None:
    made = plan(rounds(tmp_path, "ray.preload=true"))
    player, job = next(spec for spec in made.services if spec.name == "player"), made.job
    assert job is not None and player.env[SOCKET] == job.env[SOCKET]
    assert player.argv[0] == job.argv[0] == str(executable_of(player.env[SOCKET]))
    without = next(spec for spec in plan(rounds(tmp_path)).services if spec.name == "player")
    assert without.argv[0] == sys.executable and SOCKET not in without.env


def test_a_target_that_was_asked_for_wins(tmp_path: Path) -> None:
    one = plan(rounds(tmp_path), TRAINER)
    assert one.job is not None and one.job.argv[2] == "agentevolver.trainer.job.main"
    assert "player" not in {spec.name for spec in one.services}
    own = plan(rounds(tmp_path), Options(conf=Path("x"), target="my.rounds"))
    assert own.job is not None and own.job.argv[2] == "my.rounds"
    assert "player" in {spec.name for spec in own.services}


def test_the_player_has_gpus_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setattr(devices, "visible_gpus", lambda: 8)
    sizes = ("data.train_batch_size=42", "actor_rollout_ref.actor.ppo_mini_batch_size=42", "recipes.agent0.min_pool=42")
    on_gpus = rounds(tmp_path, *sizes, "recipes.agent0.executor.gpus=2", device="cuda")
    made = plan(on_gpus)
    by_name = {spec.name: spec for spec in (*made.services, made.job) if spec}
    training = "0,1,2,3,4,5"
    assert on_gpus.settings.sizes.n_gpus_per_node == 6
    assert {name: spec.env.get("CUDA_VISIBLE_DEVICES") for name, spec in by_name.items()} == {
        **dict.fromkeys(("ray", "env_service", "main"), training),
        "player": "6,7",
    }
    assert by_name["player"].argv[-2:] == ("--gpus", "2")
    shared = rounds(tmp_path, *sizes, "recipes.agent0.executor.gpus=0", "trainer.n_gpus_per_node=6", device="cuda")
    assert all("CUDA_VISIBLE_DEVICES" not in spec.env for spec in plan(shared).services)
    assert all("CUDA_VISIBLE_DEVICES" not in spec.env for spec in plan(on_gpus, TRAINER).services), "nobody plays"


@pytest.mark.parametrize("url", ["http://127.0.0.1", "http://10.0.0.1:8095"])
def test_a_player_that_could_not_be_started_here_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recipes\.agent0\.url=.* must be http://127\.0\.0\.1:PORT"):
        plan(rounds(tmp_path, f"recipes.agent0.url={url}"))


@pytest.mark.parametrize(
    ("overrides", "gpus", "visible", "says"),
    [
        (("recipes.agent0.executor.gpus=1",), 2, "0,1", "and 1 for the frozen policies, but 2 are visible: set train"),
        (("recipes.agent0.executor.gpus=1",), 1, "0", "1 are visible: set both to share one"),
        (
            ("recipes.agent0.executor.gpus=0", f"actor_rollout_ref.model.path={seed_policy_path()}"),
            *(1, "0", "gpu_memory_utilization=0.5 is taken twice"),
        ),
    ],
)
def test_gpus_that_are_too_few_are_refused(
    overrides: tuple[str, ...], gpus: int, visible: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = "0, GPU-5a1e5c2e-77b7-2b44-f1f3-3a0a1d6b7c11, 81559\n1, GPU-0c8f9d10-1234-4e5f-8a9b-ffeeddccbbaa, 40960\n"
    monkeypatch.setattr(accelerator.metadata, "version", lambda name: "2.11.0")
    monkeypatch.setattr(gpu_memory, "__defaults__", (lambda: two,))
    config = rounds(tmp_path, *overrides, f"trainer.n_gpus_per_node={gpus}", device="cuda").config
    with pytest.raises(LaunchError) as caught:
        examine(config, {"CUDA_VISIBLE_DEVICES": visible})
    assert says in str(caught.value)


def test_rounds_resume_by_a_file_of_their_own(tmp_path: Path) -> None:
    config = rounds(tmp_path).config
    folder = Path(config.experiment.dir)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 4}\n')
    with pytest.raises(UsageError, match="holds the metrics of 4 steps and no whole checkpoint"):
        check_checkpoint(config)
    (folder / "coevolve.json").write_text("{}")
    check_checkpoint(config)
