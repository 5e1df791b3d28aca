"""The launcher as a person meets it: one line for what is wrong, an exit code for its kind, and no surprise in a dry
run."""

import asyncio
import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.launcher import cli
from agentevolver.launcher.options import Options
from agentevolver.launcher.records import RunRecord, RunRegistry
from agentevolver.trainer.checkpoints import seal
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.processes import RUN_ID, ProcessId
from tests.agentevolver.launcher.fakes import Sleeper
from tests.bare_model import bare_model
from tests.free_ports import free_port

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path, model = tmp_path / "mine.yaml", bare_model(tmp_path / "model")
    path.write_text(
        f"device: cpu\nexperiment:\n  root: {tmp_path / 'experiments'}\n"
        f"env_service:\n  env_type: pocket\n  env_url: http://127.0.0.1:{free_port()}\n"
        f"actor_rollout_ref:\n  model:\n    path: {model}\n"
    )
    return path


def failure(capfd: pytest.CaptureFixture[str], arguments: list[str], root: Path) -> tuple[int, str]:
    """Run the launcher on something wrong; returns exit code and the error, which is one line."""
    code = cli.main(arguments, root)
    printed = capfd.readouterr()
    (line,) = [text for text in printed.err.splitlines() if not text.startswith("[launcher]")]
    assert line.startswith("launcher: error: ") and printed.out == ""
    return code, line


def test_an_occupied_port(capfd: pytest.CaptureFixture[str], tmp_path: Path, conf: Path) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        code, line = failure(capfd, ["--conf", str(conf), f"env_service.env_url=http://127.0.0.1:{port}"], tmp_path)
    assert code == 1 and f"port {port} is taken" in line
    assert not (tmp_path / "experiments").exists()


def test_a_service_takes_a_free_port_unless_an_address_was_asked_for(conf: Path) -> None:
    text = conf.read_text()
    assert cli.load_configuration(Options(conf=conf)).env_service.env_url in text
    conf.write_text("\n".join(line for line in text.splitlines() if "env_url" not in line))
    runs = [cli.load_configuration(Options(conf=conf)) for _ in range(2)]
    urls = {run.env_service.env_url for run in runs}
    assert len(urls) == 2 and urls == {run.config.env_service.env_url for run in runs}
    declared = cli.load_configuration(Options(conf=conf, overrides=("env_service.external=true",)))
    assert declared.env_service.env_url == "http://127.0.0.1:8080"


def test_show_config_prints_plan_and_configuration_and_does_nothing(
    capfd: pytest.CaptureFixture[str], conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def never(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a dry run started {arguments}")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["--conf", str(conf), "trainer.total_epochs=3", "--show-config"], tmp_path) == 0
    plan, _, text = capfd.readouterr().out.partition("# the resolved configuration\n")
    assert (
        plan.index("starts ray")
        < plan.index("starts env_service")
        < plan.index("-m agentevolver.trainer.job.main --config")
    )
    assert f"trains {tmp_path / 'model'}: " in plan and "attention torch_varlen, 1 device(s) a node" in plan
    config = OmegaConf.create(text)
    assert config.trainer.total_epochs == 3 and config.actor_rollout_ref.model.path == str(tmp_path / "model")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_configuration_in_one_experiment_is_refused_before_anything_starts(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, conf: Path
) -> None:
    arguments = ["--conf", str(conf)]
    assert cli.main([*arguments, "--show-config"], tmp_path) == 0
    folder = tmp_path / "experiments" / "agentevolver" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(capfd.readouterr().out.partition("# the resolved configuration\n")[2])
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    before = sorted(tmp_path.rglob("*"))
    code, line = failure(capfd, [*arguments, "data.seed=7", "trainer.save_freq=3"], tmp_path)
    assert (
        code == 2
        and "holds results of another configuration: data.seed (1 -> 7); give this run a name of its own" in line
    )
    assert sorted(tmp_path.rglob("*")) == before
    assert cli.main([*arguments, "data.seed=7", "--dry-run"], tmp_path) == 0
    assert "a start would fail now" in capfd.readouterr().out
    assert cli.main([*arguments, "data.seed=7", "--allow-changes", "--dry-run"], tmp_path) == 0
    assert "would fail" not in capfd.readouterr().out


def test_an_experiment_goes_on_as_it_was_started(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "experiments" / "agentevolver" / "mine"
    launches = folder / "launches"
    launches.mkdir(parents=True)
    record = {"cwd": str(tmp_path), "argv": ["--conf", conf.name, "data.seed=7", "--with-gymnasium"]}
    (launches / "1.json").write_text(json.dumps(record))
    monkeypatch.chdir(tmp_path)
    code, line = failure(capfd, ["--resume", "mine"], tmp_path)
    assert code == 2 and "data.seed=7 --with-gymnasium" in line and "give --trust-run" in line
    trusted = ["--resume", "mine", "--trust-run"]
    assert cli.main([*trusted, "trainer.total_training_steps=9", "--show-config"], tmp_path) == 0
    plan, _, text = capfd.readouterr().out.partition("# the resolved configuration\n")
    config = OmegaConf.create(text)
    assert (config.data.seed, config.trainer.total_training_steps) == (7, 9)
    assert f"writes to {folder}" in plan and "--env=gymnasium" in plan
    code, line = failure(capfd, [*trusted, "trainer.experiment_name=other"], tmp_path)
    assert code == 2 and "this would run in" in line
    (launches / "2.json").write_text(json.dumps({**record, "argv": [*record["argv"], "llm.judge.api_key=***"]}))
    code, line = failure(capfd, trusted, tmp_path)
    assert code == 2 and "llm.judge.api_key is a secret from the command line" in line


ELSEWHERE = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=elsewhere/global_step_9"]


@pytest.mark.parametrize(
    ("given", "has_checkpoint", "goes_on"),
    [
        (["trainer.resume_mode=disable"], False, ("auto", None)),
        (ELSEWHERE, True, ("auto", None)),
        (ELSEWHERE, False, ("resume_path", "elsewhere/global_step_9")),
    ],
)
def test_where_a_launch_began_is_not_where_the_next_one_goes_on(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, conf: Path, monkeypatch: pytest.MonkeyPatch,
    given: list[str], has_checkpoint: bool, goes_on: tuple[str, str | None],
) -> None:  # fmt: skip
    folder = tmp_path / "experiments" / "agentevolver" / "mine"
    (folder / "launches").mkdir(parents=True)
    record = {"cwd": str(tmp_path), "argv": ["--conf", conf.name, "data.seed=7", *given]}
    (folder / "launches" / "1.json").write_text(json.dumps(record))
    if has_checkpoint:
        checkpoint = folder / "checkpoints" / "global_step_2"
        checkpoint.mkdir(parents=True)
        for name in ("data.pt", "trainer.pt"):
            (checkpoint / name).touch()
        seal(checkpoint)
    (tmp_path / "elsewhere" / "global_step_9" / "actor").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--resume", "mine", "--trust-run", "--show-config"], tmp_path) == 0
    config = OmegaConf.create(capfd.readouterr().out.partition("# the resolved configuration\n")[2])
    assert (config.trainer.resume_mode, config.trainer.resume_from_path) == goes_on and config.data.seed == 7


def test_gpus_are_looked_at_before_a_start_and_a_dry_run_tells_of_them(
    capfd: pytest.CaptureFixture[str], conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> list[str]:
        raise LaunchError("one GPU too few")

    run = ["--conf", str(conf), "device=cuda", "--dry-run"]
    monkeypatch.setattr("agentevolver.launcher.preflight.examine", lambda *_: ["memory of a GPU: 9.5 GiB"])
    assert cli.main(run, tmp_path) == 0
    assert "memory of a GPU: 9.5 GiB" in capfd.readouterr().out
    monkeypatch.setattr("agentevolver.launcher.preflight.examine", none)
    assert cli.main(run, tmp_path) == 0
    assert "a start would fail now: one GPU too few" in capfd.readouterr().out
    code, line = failure(capfd, ["--conf", str(conf), "device=cuda"], tmp_path)
    assert (code, line) == (1, "launcher: error: one GPU too few") and not (tmp_path / "experiments").exists()
    assert cli.main(["--conf", str(conf), "device=cpu", "--dry-run"], tmp_path) == 0
    assert "GPU too few" not in capfd.readouterr().out


def test_a_dry_run_imports_neither_torch_nor_ray(conf: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from agentevolver.launcher.cli import main\n"
        f"code = main(['--conf', {str(conf)!r}, '--dry-run'], Path({str(tmp_path)!r}))\n"
        "print(code, sorted({'torch', 'ray', 'vllm', 'verl', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_kill_ends_what_this_checkout_recorded_and_no_other_python(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_id, gone = secrets.token_hex(4), ProcessId(2**22 + 1, 1)
    record = RunRecord(run_id=run_id, experiment_dir=str(tmp_path), launcher=gone, started_at="now")
    registry = RunRegistry(tmp_path / ".agentevolver" / "run")
    with Sleeper(**{RUN_ID: run_id}) as ours, Sleeper() as neighbour:
        registry.write(record.with_process("env_service", ours.identity))
        (registry.folder / "torn.json").write_text('{"run_id": "to')
        assert cli.main(["--status"], tmp_path) == 0
        shown = capfd.readouterr().out
        assert f"env_service: pid {ours.process.pid}" in shown and "torn.json cannot be read (JSONDecodeError" in shown
        assert cli.main(["--kill"], tmp_path) == 0
        assert ours.process.wait(5) < 0 and neighbour.identity.alive
        assert cli.main(["--status"], tmp_path) == 0
        assert capfd.readouterr().out == "no run of this checkout\n"
