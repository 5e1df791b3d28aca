"""What lies in examples/: every experiment can be planned on both devices, every script and manifest parses and names
what exists."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentevolver.cli.commands.table import carry_out
from agentevolver.cli.commands.task_manager import main as task_manager
from agentevolver.config.checks import load
from agentevolver.config.layers import read_overrides
from agentevolver.config.load import compose_defaults, merge, refuse_unknown
from agentevolver.config.parts import from_experiment
from agentevolver.config.schema import TEACHER_ENVIRONMENTS
from agentevolver.evaluation.tables import TablePlan, read_table
from agentevolver.launcher import cli
from agentevolver.launcher.options import parse
from agentevolver.trainer.checkpoints import seal
from agentevolver.utils.errors import UsageError
from env_service.cli import main as env_service
from env_service.registry import known_environments
from task_manager.actions import format_of
from task_manager.profile import profile_for
from tests.examples.headers import commands as header_commands
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FOLDERS = (EXAMPLES, *sorted((ROOT / "agentevolver" / "recipes").glob("*/examples")))
FILES = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted(folder.iterdir())]
CONFS = [str(path) for path in FILES if path.suffix == ".yaml"]
SCRIPTS = [str(path) for path in FILES if path.suffix == ".sh"]
DOCUMENT = (EXAMPLES / "multi_node.md").read_text()

# What a dry run says of an environment whose package or data is not on this machine: the one obstacle that may be.
NOT_INSTALLED = {
    "appworld": ("AppWorld is not installed: ", "AppWorld's data is missing: "),
    "bfcl": ("the bfcl environment could not import `",),
    "catalogue": ("there is no tool catalogue in ",),
    "gymnasium": ("the gymnasium environment could not import `",),
    "reasoning_gym": ("reasoning-gym is not installed: ",),
    "scienceworld": ("scienceworld needs a Java runtime", "the scienceworld environment could not import its package"),
    "tau2": ("the tau2 environment could not import `",),
    "textarena": ("the textarena environment could not import `",),
    "textworld": ("the textworld environment could not import `",),
}


def main_job(conf: Path) -> str:
    rounds = "agent0" in yaml.safe_load(conf.read_text()).get("recipes", {})
    return "agentevolver.recipes.agent0" if rounds else "agentevolver.trainer.job.main"


def header_calls(beginning: str) -> list[Any]:
    """The commands of all headers that begin so, each with its file's name; variables before it do not count."""
    found = [(name, words) for name in (*CONFS, *SCRIPTS) for words in header_commands(ROOT / name)]
    chosen = [
        (name, words)
        for name, words in found
        if re.sub(r"^(?:[A-Z]+=.*? )*(?=python|bash)", "", " ".join(words)).startswith(beginning)
    ]
    return [pytest.param(name, words, id=f"{name}-{index}") for index, (name, words) in enumerate(chosen)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The arguments of every call of a program in the document's shell blocks; shell variables stand for a plain
    word."""
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    text = re.sub(r"\"?\$\{?SLURM_JOB_NUM_NODES\}?\"?", "2", text)
    text = re.sub(r"\"?([\w=.:/]*)\$address([\w:./]*)\"?", r"\g<1>HEAD\g<2>", text)
    calls = [line.partition(program)[2] for line in text.splitlines() if program in line]
    return [re.split(r"\s(?:&|>|--dry-run)", call)[0].rstrip(' &"').split() for call in calls]


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", CONFS)
def test_every_experiment_can_be_planned(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    arguments = [
        "--conf",
        str(ROOT / name),
        "--show-config",
        f"device={device}",
        f"experiment.root={tmp_path}",
        "ray.dashboard=false",
    ]
    assert cli.main(arguments, tmp_path) == 0
    printed = capsys.readouterr()
    assert (
        f" on {device}\n" in printed.out
        and f"-m {main_job(ROOT / name)} --config" in printed.out
        and "sk-of-nobody" not in printed.out
    )
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"


def test_every_header_shows_how_to_start_its_example() -> None:
    assert [name for name in (*CONFS, *SCRIPTS) if not header_commands(ROOT / name)] == []


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "words"), header_calls("python launcher.py"))
def test_every_launch_that_a_header_prints_can_be_planned(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        "agentevolver.launcher.experiment.check_model", lambda path: None
    )  # a folder of the reader's own is not here
    assert (
        cli.main(
            [*words[2:], "--show-config", "device=cuda", f"experiment.root={tmp_path}", "ray.dashboard=false"], tmp_path
        )
        == 0
    )
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed.partition("# the resolved configuration\n")[2])
    data, known = config["data"], splits_of(config["env_service"]["env_type"])
    if not Path(name).stem.startswith("overall"):  # whose splits have names that every environment understands
        assert {data["train_split"], *data["val_splits"]} <= known, "the splits are those of the environment"
    assert f"-m {main_job(ROOT / name)} --config" in printed and "sk-of-nobody" not in printed


@pytest.mark.thorough
@pytest.mark.parametrize("env_type", sorted(known_environments()))
def test_the_whole_loop_can_be_planned_on_every_environment(
    env_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    overall = [f"env_service.env_type={env_type}", f"experiment.root={tmp_path}", "ray.dashboard=false", "device=cpu"]
    overall += [f"env_service.env_url=http://127.0.0.1:{free_port()}"]  # whatever else is served on this machine
    # The benchmark's own splits: what is not trained on is tested on.
    overall += ["data.val_splits=[test]"] if env_type == "tau2" else []
    arguments = ["--conf", str(EXAMPLES / "overall.yaml"), "--show-config", *overall]
    assert cli.main([*arguments, "llm.base_url=http://127.0.0.1:9/v1", "llm.model=some-model"], tmp_path) == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed.partition("# the resolved configuration\n")[2])
    assert config["env_service"]["env_type"] == config["trainer"]["project_name"] == env_type
    obstacles = [line for line in printed.splitlines() if "a start would fail" in line]
    assert all(any(text in line for text in NOT_INSTALLED.get(env_type, ())) for line in obstacles), obstacles
    configuration = from_experiment(
        EXAMPLES / "overall.yaml", [*overall, "llm.base_url=http://127.0.0.1:9/v1", "llm.model=some-model"]
    )
    assert profile_for(env_type, configuration.task_manager.env_profile).entities
    assert format_of(env_type, configuration.task_manager.action_format).executable
    if env_type not in TEACHER_ENVIRONMENTS:
        assert cli.main(arguments, tmp_path) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert (
            "the built-in teacher knows the environments pocket, pocket_app alone, and env_service.env_type is "
            f"{env_type}; name an endpoint" in line
        )


def splits_of(env_type: str) -> set[str]:
    if env_type == "bfcl":
        return {"train", "val", "test"}
    return (
        {"train", "dev", "test_normal", "test_challenge"}
        if env_type == "appworld"
        else {"train", "dev", "test", "hard"}
    )


@pytest.mark.parametrize(("name", "words"), header_calls("python -m task_manager"))
def test_every_command_of_the_task_manager_that_a_header_prints_can_be_carried_out(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        "task_manager.services.running", lambda configuration, **kwargs: pytest.fail("nothing is started")
    )
    monkeypatch.setattr(
        "agentevolver.cli.commands.task_manager._run",
        lambda options: asked.append((options.command, options.with_services)) or 0,
    )
    assert task_manager(words[3:]) == 0 and asked
    from_experiment(Path(words[words.index("--conf") + 1]), ["device=cpu"])


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "words"), header_calls("bash"))
def test_every_script_that_a_header_prints_hands_on_what_it_is_given(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    variables = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z]+=.*", word))
    script, *arguments = words[len(variables) + 1 :]
    assert (ROOT / script).is_file()
    if Path(script).name == "setup.sh":
        assert all(re.search(rf"^\s*{argument}\)", (ROOT / script).read_text(), re.MULTILINE) for argument in arguments)
        return
    calls = carried_out(tmp_path, script, arguments, variables)
    if tables := [call for call in calls if call[:3] == ["-m", "agentevolver", "table"]]:  # they launch, see below
        assert all(set(arguments) < set(call) and (ROOT / call[3]).is_file() for call in tables)
        return
    launches = [line for line in calls if line[0].endswith("launcher.py")]
    assert launches
    text = (ROOT / script).read_text()
    handed = [word for word in arguments if f"== {word} " not in text]  # others are the script's own options
    for _, *given in launches:
        assert given[len(given) - len(handed) :] == handed and set(arguments) & set(given) == set(handed)
    options = parse(launches[0][1:])
    load(ROOT / "examples" / Path(str(options.conf)).name, ["device=cpu", *options.overrides])


def carried_out(folder: Path, script: str, arguments: list[str], variables: dict[str, str]) -> list[list[str]]:
    """Run a script in a checkout where nothing is installed and Python only notes what it is asked for; returns its
    calls."""
    for stub in (
        "install.sh",
        "env_service/environments/textarena/setup.sh",
        ".venv/bin/python",
    ):
        (folder / stub).parent.mkdir(parents=True, exist_ok=True)
        (folder / stub).touch()
    (folder / script).parent.mkdir(exist_ok=True)
    (folder / script).write_text((ROOT / script).read_text())
    python = folder / ".venv" / "bin" / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "sk-of-nobody", **variables}
    subprocess.run(["bash", script, *arguments], cwd=folder, env=environ, check=True)
    return [line.split("\x1f") for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize(("name", "depth"), [("bfcl", 27), ("appworld", 17)])
def test_the_published_numbers_are_those_of_the_experiment(
    name: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    resolved = load(EXAMPLES / f"{name}.yaml", ["device=cuda"])
    settings, config = resolved.settings, resolved.config
    actor = config.actor_rollout_ref.actor
    assert (actor.optim.lr, actor.kl_loss_coef, actor.clip_ratio_low, actor.clip_ratio_high) == (1e-6, 0.001, 0.2, 0.28)
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode, actor.kl_loss_type) == (
        "vanilla",
        "token-mean",
        "low_var_kl",
    )
    sizes = settings.sizes
    assert (sizes.train_batch_size, sizes.ppo_mini_batch_size, sizes.n, sizes.val_n, settings.rollout.max_steps) == (
        32,
        8,
        8,
        8,
        30,
    )
    assert sizes.max_prompt_length + sizes.max_response_length == sizes.max_model_len == 25_580
    assert (config.actor_rollout_ref.rollout.temperature, config.actor_rollout_ref.rollout.val_kwargs.temperature) == (
        0.9,
        0.9,
    )
    assert (config.trainer.total_epochs, config.trainer.total_training_steps) == (40, 100)
    assert str(config.actor_rollout_ref.model.path) == "Qwen/Qwen2.5-7B-Instruct"
    tasks = settings.task_manager
    assert tasks.strategy_args.steps(name) == (3, depth) and (tasks.n, tasks.target_tasks) == (8, 500)
    experience = settings.exp_manager
    assert (experience.preset, experience.rollout_ratio, experience.reme.retrieve_top_k, experience.init_rollouts) == (
        "original",
        0.5,
        5,
        4,
    )
    assert (
        experience.off_cliprange_high == 0.6
        and experience.val_rollout_mode == "woexp"
        and experience.kl_to == "reference"
    )
    assert experience.init_exp_before_training and experience.reme.updated_freq == 0 and experience.query == "task"
    adca = settings.attribution.adca_grpo
    assert (adca.preset, adca.alpha, adca.prm_scheme, adca.prm_steps) == ("original", 0.1, "decouple", 100)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_parses_and_starts_an_experiment_that_exists(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    assert set(re.findall(r"[\w/]*examples/[\w.]+\.yaml", (ROOT / script).read_text())) <= set(CONFS)


FAKE_PYTHON = """#!/usr/bin/env bash
call=$(IFS=$'\\x1f'; echo "$*")
echo "$call" >> calls
"""


class Launcher:
    """Stands for the launcher: keeps what it was called with, and leaves what a run leaves."""

    def __init__(self, experiments: Path) -> None:
        self.experiments = experiments
        self.calls: list[list[str]] = []

    def __call__(self, arguments: list[str]) -> int:
        self.calls.append(arguments)
        name = next(item.partition("=")[2] for item in arguments if item.startswith("trainer.experiment_name="))
        checkpoint = self.experiments / "ablation" / name / "checkpoints" / "global_step_80"
        checkpoint.mkdir(parents=True)
        seal(checkpoint)
        if name.startswith(("navigating", "overall")):
            (self.experiments / "ablation" / name / "experience.sqlite").touch()
        return 0


def checkout(folder: Path, name: str, python: str) -> Path:
    """Return a script of the examples, in a folder whose Python is the script `python`."""
    (folder / "examples").mkdir()
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "install.sh").touch()
    script, program = folder / "examples" / name, folder / ".venv" / "bin" / "python"
    script.write_text((EXAMPLES / name).read_text())
    program.write_text(python)
    program.chmod(0o755)
    return script


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(path.name for path in (EXAMPLES / "tables").glob("*.yaml")))
def test_every_training_of_a_table_is_one_that_can_be_started(name: str) -> None:
    plan = TablePlan(read_table(EXAMPLES / "tables" / name), EXAMPLES / "tables")
    first = {cell.condition: cell for cell in reversed(plan.cells())}
    launches = [launch for cell in first.values() if (launch := plan.training(cell)) is not None]
    assert launches
    for launch in launches:
        load(launch.conf, ["device=cpu", *launch.overrides])


@pytest.mark.thorough
def test_the_table_of_the_ablation_launches_what_its_script_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ablation_launches.json` is what examples/ablation.sh launched before there was a table."""
    written = json.loads((Path(__file__).parent / "ablation_launches.json").read_text())
    monkeypatch.chdir(tmp_path)
    table = read_table(EXAMPLES / "tables" / "ablation.yaml")
    plan = TablePlan(table, Path("examples") / "tables", seeds=[1, 2], every=["ray.dashboard=false"])
    launcher = Launcher(Path("experiments"))
    for _ in range(2):
        carry_out(plan, launcher)  # what is finished is not done again
    assert [[item.replace(str(tmp_path), "ROOT") for item in call] for call in launcher.calls] == written
    for arguments in launcher.calls:
        options = parse(arguments)
        settings = load(ROOT / str(options.conf), ["device=cpu", *options.overrides]).settings
        if "trainer.val_only=true" in options.overrides:
            with_pool = any(name in str(settings.experiment_dir) for name in ("navigating", "overall"))
            assert settings.exp_manager.val_rollout_mode == ("both" if with_pool else "woexp")
            assert settings.exp_manager.scout.split == ("test" if with_pool else None)


def test_the_script_of_the_ablation_hands_over_to_its_table(tmp_path: Path) -> None:
    script = checkout(tmp_path, "ablation.sh", FAKE_PYTHON)
    variables = {"PATH": "/usr/bin:/bin", "SEEDS": "1", "STEPS": "20", "CONDITIONS": "basic overall"}
    subprocess.run(["bash", str(script), "ray.dashboard=false"], env=variables, check=True)
    (table,) = (tmp_path / "calls").read_text().replace("\x1f", " ").splitlines()
    assert table == (
        "-m agentevolver table examples/tables/ablation.yaml ray.dashboard=false --train "
        "trainer.total_training_steps=20 --seeds 1 --conditions base,basic,overall"
    )


def test_every_shell_block_of_several_nodes_parses() -> None:
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
    assert calls
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
    assert calls
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            env_service([*call, "--help"])
        assert ended.value.code == 0
    printed = capsys.readouterr().out
    used = {word for call in calls for word in call if word.startswith("--")}
    assert used and all(word in printed for word in used)
