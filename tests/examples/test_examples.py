"""What lies in examples/: every experiment can be planned on both devices, every script and manifest parses and names what exists."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from agentevolver.launcher import cli
from agentevolver.launcher.errors import UsageError
from agentevolver.launcher.options import parse
from agentevolver.layers import compose_defaults, merge, read_overrides, refuse_unknown
from agentevolver.settings import load
from env_service.cli import main as env_service

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CONFS = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
DOCUMENT = (EXAMPLES / "multi_node.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The arguments of every call of a program in the document's shell blocks; shell variables stand for a plain word."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    text = re.sub(r"\"?\$\{?SLURM_JOB_NUM_NODES\}?\"?", "2", text)
    text = re.sub(r"\"?([\w=.:/]*)\$address([\w:./]*)\"?", r"\g<1>HEAD\g<2>", text)
    calls = [line.partition(program)[2] for line in text.splitlines() if program in line]
    return [re.split(r"\s(?:&|>|--dry-run)", call)[0].rstrip(' &"').split() for call in calls]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", CONFS)
def test_every_experiment_can_be_planned(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    arguments = ["--conf", str(EXAMPLES / name), "--dry-run", f"device={device}", f"experiment.root={tmp_path}", "ray.dashboard=false"]
    assert cli.main(arguments, tmp_path) == 0
    printed = capsys.readouterr()
    assert f" on {device}\n" in printed.out and "-m agentevolver.main --config" in printed.out and "sk-of-nobody" not in printed.out
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"


@pytest.mark.parametrize(("name", "depth"), [("bfcl", 27), ("appworld", 17)])
def test_the_papers_numbers_are_those_of_the_experiment(name: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    resolved = load(EXAMPLES / f"{name}.yaml", ["device=cuda"])
    settings, actor = resolved.settings, resolved.config.actor_rollout_ref.actor
    assert (actor.optim.lr, actor.kl_loss_coef, actor.clip_ratio_low, actor.clip_ratio_high) == (1e-6, 0.001, 0.28, 0.28)
    assert (settings.sizes.train_batch_size, settings.sizes.n, settings.sizes.val_n, settings.rollout.max_steps) == (32, 8, 8, 30)
    assert resolved.config.trainer.total_epochs == 40 and str(resolved.config.actor_rollout_ref.model.path) == "Qwen/Qwen2.5-7B-Instruct"
    assert settings.task_manager.strategy_args.steps(name) == (3, depth)
    experience = settings.exp_manager
    assert (experience.preset, experience.rollout_ratio, experience.reme.retrieve_top_k, experience.init_rollouts) == ("paper", 0.5, 5, 4)
    assert experience.off_cliprange_high == 0.6 and experience.val_rollout_mode == "woexp" and experience.kl_to == "old"
    assert settings.attribution.adca_grpo.preset == "paper" and settings.attribution.adca_grpo.alpha == 0.1


@pytest.mark.parametrize("script", [path.name for path in EXAMPLES.glob("*.sh")])
def test_every_script_parses_and_starts_an_experiment_that_exists(script: str) -> None:
    subprocess.run(["bash", "-n", str(EXAMPLES / script)], check=True)
    assert set(re.findall(r"examples/([\w.]+\.yaml)", (EXAMPLES / script).read_text())) <= set(CONFS)


FAKE_PYTHON = """#!/usr/bin/env bash
call=$(IFS=$'\\x1f'; echo "$*")
echo "$call" >> calls
name=$(sed -n 's/.*trainer.experiment_name=\\([^\\x1f]*\\).*/\\1/p' <<< "$call")
mkdir -p "experiments/ablation/$name"
case $name in navigating* | overall*) touch "experiments/ablation/$name/experience.sqlite" ;; esac
"""


def test_every_launch_of_the_ablation_can_be_planned(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "install.sh").touch()
    script, python = tmp_path / "examples" / "ablation.sh", tmp_path / ".venv" / "bin" / "python"
    script.write_text((EXAMPLES / "ablation.sh").read_text())
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    for _ in range(2):
        subprocess.run(["bash", str(script)], env={"PATH": "/usr/bin:/bin", "SEEDS": "1"}, check=True)
    *launches, table, again = [line.split("\x1f") for line in (tmp_path / "calls").read_text().splitlines()]
    assert table[0] == again[0] == "benchmarks/ablation.py" and len(launches) == 1 + 2 * 5, "what is finished is not done again"
    for program, *arguments in launches:
        options = parse(arguments)
        assert program == "launcher.py" and options.conf is not None
        settings = load(ROOT / options.conf, ["device=cpu", *options.overrides]).settings
        if "trainer.val_only=true" in options.overrides:
            with_pool = any(f"trainer.experiment_name={name}" in item for name in ("navigating", "overall") for item in options.overrides)
            assert settings.exp_manager.val_rollout_mode == ("both" if with_pool else "woexp")
            assert settings.exp_manager.scout.split == ("test" if with_pool else None)


def test_every_shell_block_of_several_nodes_parses() -> None:
    assert len(blocks("bash")) >= 5
    for block in blocks("bash"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)


def test_the_manifests_are_what_kuberay_takes() -> None:
    (text,) = blocks("yaml")
    cluster, secret, claim = yaml.safe_load_all(text)
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
        claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        assert claims == [claim["metadata"]["name"]]
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == group["rayStartParams"]["num-gpus"]


def test_every_option_and_key_of_the_launcher_exists() -> None:
    calls = commands("launcher.py")
    assert len(calls) == 3
    config = compose_defaults("cuda")
    for call in calls:
        options = parse(call)
        assert options.conf is not None and (ROOT / options.conf).exists()
        overrides = read_overrides(list(options.overrides))
        refuse_unknown(overrides, config, "multi_node.md")
        merge(config, overrides, "multi_node.md")
        assert config.trainer.nnodes == 2
    with pytest.raises(UsageError):
        parse([*calls[0], "--no-such-option"])


def test_every_option_of_the_environment_service_exists(capsys: pytest.CaptureFixture[str]) -> None:
    calls = commands("-m env_service")
    assert len(calls) == 3
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            env_service([*call, "--help"])
        assert ended.value.code == 0
    printed = capsys.readouterr().out
    used = {word for call in calls for word in call if word.startswith("--")}
    assert used and all(word in printed for word in used)
