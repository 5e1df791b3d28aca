import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError

from agentevolver.config.checks import load
from agentevolver.trainer.experience import CHUNK, RunExperience
from agentevolver.types import Task
from agentevolver.utils.errors import TrainingFailed
from agentevolver.utils.files import read_jsonl
from experience_manager.manager import Filling
from experience_manager.store import Store
from tests.trajectories import trajectory

EXAMPLE = Path(__file__).parents[3] / "examples" / "navigating.yaml"
OPENING = ({"role": "system", "content": "site k1"}, {"role": "user", "content": "delete the note"})


def record(name="g_0", *, guided=False, stripped=False, wanted=False, success=False, task="t", guidance=None):
    injected = {"injected": "tip", "keep": not stripped} if guided else None
    return trajectory(
        group_id=name.partition("_")[0],
        rollout_id=int(name.partition("_")[2]),
        task={"task_id": task},
        messages=[*(dict(message) for message in OPENING), {"role": "assistant", "content": "done"}],
        steps=[{"index": 0, "action": "done", "observation": ""}],
        outcome={"score": float(success), "success": success},
        guidance=guidance or injected,
        guidance_wanted=wanted,
    )


@pytest.fixture(scope="module")
def ray():
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def settings_of(tmp_path):
    summariser = "llm.roles.summariser={base_url: 'http://127.0.0.1:9/v1', api_key_env: null, tries: 1}"
    items = (
        "device=cpu",
        "actor_rollout_ref.model.path=x",
        f"experiment.root={tmp_path}",
        "exp_manager.encoder.kind=hashing",
        'exp_manager.experience_template="tip {}\\n"',
        "exp_manager.retrieval.item_template='{content}'",
        summariser,
    )
    return load(EXAMPLE, list(items)).settings


def add_experience(settings, *words):
    from agentevolver.cli.commands.experience_manager import main

    store = settings.experiment_dir / "experience.sqlite"
    encoder = ("--set", "exp_manager.encoder.kind=hashing")
    assert (
        main(["add", "--store", str(store), *encoder, "--when", "a note is to be deleted", "--content", words[0]]) == 0
    )


@pytest.mark.service
@pytest.mark.timeout(240)
def test_a_run_guides_counts_and_fills_its_pool_once_and_lives_on_without_its_actor(ray, tmp_path):
    from agentevolver.trainer.verl_plugin.agent_loop import make_guides

    settings = settings_of(tmp_path)
    settings.experiment_dir.mkdir(parents=True)
    add_experience(settings, "read its doc first")
    navigation = RunExperience(settings, [Task("held-out", "pocket")])
    navigation.wait()

    # As a worker process would: the actor is found by the experiment's folder.
    task = Task("t", "pocket")
    guides = make_guides(settings)
    guided = [i for i in range(8) if guides.guide(task, "g", i, 1) is not None]
    assert len(guided) == 4
    injection = asyncio.run(guides.guide(task, "g", guided[0], 1)([dict(message) for message in OPENING]))
    assert injection.guided and injection.messages[-1]["content"] == "tip read its doc first\ndelete the note"

    told, rolled = [], []

    def roll_out(tasks, n):
        rolled.append([task.task_id for task in tasks])
        return [record(f"{task.task_id}_{i}", task=task.task_id, success=i == 0) for task in tasks for i in range(n)]

    tasks = [Task(f"w{i}", "pocket") for i in range(CHUNK + 2)]
    navigation.fill("warm_start", tasks, roll_out, lambda done, total: told.append((done, total)))
    assert told == [(0, CHUNK + 2), (CHUNK, CHUNK + 2)] and [len(ids) for ids in rolled] == [CHUNK, 2]
    assert len(read_jsonl(settings.experiment_dir / "trajectories" / f"warm_start_{CHUNK}.jsonl")) == 2 * 4
    early = navigation.collect()
    assert early["exp_manager/warm_start/success"] == 0.25
    assert early["exp_manager/distil/failed_extraction"] > 0, (
        "the summariser is away: it shows, and nothing else happens"
    )
    assert early["exp_manager/warm_start/undistilled"] == CHUNK + 2

    # A run that was killed between the two chunks goes on with the second, and with the pool as it was then.
    progress = settings.experiment_dir / "experience" / "warm_start.json"
    done = progress.with_name(f"warm_start_{CHUNK + 2}")
    assert [path.name for path in progress.parent.glob("warm_start_*")] == [done.name]
    done.rename(progress.with_name(f"warm_start_{CHUNK}"))
    add_experience(settings, "learned by what was cut off")
    progress.write_text(json.dumps({"tasks": json.loads(progress.read_text())["tasks"][:CHUNK], "metrics": {}}))
    rolled.clear()
    navigation.fill("warm_start", tasks, roll_out, lambda *_: None)
    navigation.fill("warm_start", tasks, roll_out, lambda *_: None)
    assert rolled == [[f"w{CHUNK}", f"w{CHUNK + 1}"]]
    with Store(settings.experiment_dir / "experience.superseded-1.sqlite", create=False) as aside:
        assert len(aside.records("default")) == 2

    # A run that went back to an earlier checkpoint comes to the last validation once more.
    rolled.clear()
    navigation.fill("scout", tasks[:1], roll_out, lambda *_: None, step=3)
    add_experience(settings, "learned after the scouts")
    navigation.fill("scout", tasks[:1], roll_out, lambda *_: None, step=3)
    assert rolled == [["w0"]]

    navigation.after_rollouts(
        1,
        [
            record("g_0", guided=True, stripped=True, success=True, guidance=injection.use().to_dict()["guidance"]),
            record("g_1"),
        ],
    )
    metrics = {}
    for _ in range(20):
        metrics |= navigation.collect()
        if "exp_manager/pool_size" in metrics and "exp_manager/late_records" not in metrics:
            break
    assert metrics["exp_manager/pool_size"] == 1.0

    ray.kill(navigation._actor)
    navigation.after_rollouts(2, [record()])
    assert navigation.collect().get("exp_manager/errors") == 1.0
    gone = asyncio.run(guides.guide(task, "g", guided[0], 9)([dict(message) for message in OPENING]))
    assert not gone.guided and "the experience manager failed" in gone.guidance.problem
    navigation.finish(1.0)


class Called:
    """Stands for an actor's method: called at once, and what it returns stands for the reference."""

    def __init__(self, method):
        self.remote = method


def navigation_over(folder, monkeypatch, **methods):
    """A deterministic run's navigation over an actor that is these methods."""
    monkeypatch.setattr("agentevolver.trainer.experience.ray.get", lambda reference, timeout=None: reference)
    ready = {"__ray_ready__": lambda: None, "settled": lambda: None}
    navigation = RunExperience.__new__(RunExperience)
    navigation._several = False
    navigation._directory, navigation._waits, navigation._owns_pool = folder, True, True
    navigation._pending, navigation._early, navigation._several = [], {}, False
    navigation._actor = SimpleNamespace(**{name: Called(method) for name, method in {**ready, **methods}.items()})
    return navigation


def test_rollouts_whose_distillation_failed_are_distilled_again_counted_and_owed_by_the_next_run(
    tmp_path, monkeypatch, caplog
):
    down, asked, rolled = ["w1", "w40"], [], []

    def warm_start(records):
        tasks = list(dict.fromkeys(one.task.task_id for one in records))
        asked.append(tasks)
        return Filling({"exp_manager/pool_size": 1.0}, tuple(task for task in tasks if task in down))

    def roll_out(tasks, n):
        rolled.append(len(tasks))
        return [record(f"{task.task_id}_{i}", task=task.task_id) for task in tasks for i in range(n)]

    navigation = navigation_over(
        tmp_path, monkeypatch, warm_start=warm_start, save=lambda _: None, restore=lambda *_: True
    )
    navigation._rollouts = 2
    tasks = [Task(f"w{i}", "pocket") for i in range(CHUNK + 10)]

    def fill():
        navigation.fill("warm_start", tasks, roll_out, lambda *_: None)
        return json.loads((tmp_path / "experience" / "warm_start.json").read_text())

    known = fill()
    assert rolled == [CHUNK, 10] and asked[2:] == [["w1"], ["w40"]], "what was rolled out is not rolled out again"
    assert known["undistilled"] == {"warm_start_0.jsonl": ["w1"], f"warm_start_{CHUNK}.jsonl": ["w40"]}
    assert navigation.collect()["exp_manager/warm_start/undistilled"] == 2.0
    assert "rollouts of 2 tasks were not distilled in full" in caplog.text

    asked.clear()
    down.clear()
    assert fill()["undistilled"] == {} and asked == [["w1"], ["w40"]] and len(rolled) == 2
    assert navigation.collect()["exp_manager/warm_start/undistilled"] == 0.0
    asked.clear()
    fill()
    assert asked == []


def test_a_save_outlives_the_loss_of_the_actor_and_ends_the_run_if_it_does_not_come_back(tmp_path, monkeypatch):
    saved, left = [], [RayActorError(), RayActorError()]

    def save(folder):
        if left:
            raise left.pop()
        saved.append(folder)

    navigation = navigation_over(tmp_path, monkeypatch, save=save)
    monkeypatch.setattr("agentevolver.trainer.experience.RETRY_S", 0.0)
    navigation.save(tmp_path / "global_step_2")
    assert saved == [tmp_path / "global_step_2"]
    left.append(RayActorError())
    monkeypatch.setattr("agentevolver.trainer.experience.START_TIMEOUT_S", 0.0)
    with pytest.raises(TrainingFailed, match=r"the experience pool could not be written into .*The actor"):
        navigation.save(tmp_path / "global_step_4")
    assert len(saved) == 1
