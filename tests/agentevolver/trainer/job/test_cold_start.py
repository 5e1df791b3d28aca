import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.config.checks import load
from agentevolver.launcher.plan import as_yaml, resolve_config
from agentevolver.llm.message_logs import read_line
from agentevolver.trainer.job import cold_start
from agentevolver.trainer.job.cold_start import choose, prepare, render
from agentevolver.types import GuidanceUse, StopReason, Task, Trajectory
from agentevolver.utils.errors import ConfigError, TrainingFailed
from context_manager.chat import ChatRenderer
from tests.real_tokenizers import build_real
from tests.tiny_model import build, tiny_model_path

LOG = "examples/conversations/pocket.jsonl"


def conversation(task: str, score: float = 1.0, turns: int = 1) -> Trajectory:
    said = [{"role": "user", "content": f"do {task}"}]
    for turn in range(turns):
        said += [{"role": "assistant", "content": f"act {turn}"}, {"role": "user", "content": "ok"}]
    return read_line({"messages": said, "score": score, "task_id": task}, f"{task}-{turns}")


def test_what_succeeded_is_chosen_the_shortest_of_each_task_first(monkeypatch):
    validated = replace(conversation("v"), task=Task("v", "imported", metadata={"validation": True}))
    failed = replace(conversation("f"), stop_reason=StopReason.ENV_ERROR, outcome=None)
    given = [
        conversation("a", turns=3),
        conversation("b"),
        conversation("a", 0.5),
        conversation("a"),
        validated,
        failed,
    ]
    monkeypatch.setattr(cold_start, "MAX_PER_TASK", 2)
    kept, left_out = choose([*given, conversation("a", turns=2)], 1.0)
    assert [(one.task.task_id, len(one.steps)) for one in kept] == [("a", 1), ("a", 2), ("b", 1)]
    assert left_out == {
        "of validation": 1,
        "without a grade": 1,
        "below min_score": 1,
        "beyond the shortest of a task": 1,
    }


def test_experience_is_stripped_before_it_is_imitated():
    renderer = ChatRenderer(build_real("qwen2_5"))
    plain = conversation("a")
    guided = conversation("a")
    guided.messages[0]["content"] = "tip: look twice\n" + guided.messages[0]["content"]
    guided.guidance = GuidanceUse(True, "look twice", ("1",), False, injected="tip: look twice\n")
    (made, wanted), left_out = render([guided, plain], renderer, 10**4)
    assert made == wanted and not left_out


def test_what_is_too_long_or_cannot_be_said_is_left_out_by_name():
    renderer = ChatRenderer(build_real("qwen2_5"))
    twice = conversation("b")
    twice.messages.insert(2, {"role": "assistant", "content": "again"})
    kept, left_out = render([conversation("a", turns=30), conversation("a"), twice], renderer, 300)
    assert len(kept) == 1
    assert left_out["longer than 300 tokens"] == 1
    assert any("both the assistant's" in why for why in left_out)


ROOM = (
    "data.max_prompt_length=4000",
    "data.max_response_length=20000",
    "actor_rollout_ref.rollout.max_model_len=24000",
)


def resolved(tmp_path: Path, *overrides: str):
    return load(
        None,
        [
            "device=cpu",
            f"actor_rollout_ref.model.path={tiny_model_path()}",
            f"experiment.root={tmp_path}",
            "trainer.experiment_name=x",
            *overrides,
        ],
    )


def test_nothing_to_imitate_is_refused_before_anything_is_trained(tmp_path: Path):
    found = resolved(
        tmp_path,
        f"cold_start.files=[{LOG}]",
        "data.max_prompt_length=1",
        "data.max_response_length=33",
        "actor_rollout_ref.rollout.response_length=32",
        "actor_rollout_ref.rollout.max_env_len=32",
    )
    settings = found.settings
    with pytest.raises(ConfigError, match=r"0 of 96 conversations can be imitated.*longer than 34 tokens"):
        prepare(found.config, settings, ChatRenderer(build_real("qwen2_5")))
    assert not (settings.experiment_dir / "cold_start").exists()


def test_a_run_goes_on_with_the_model_that_it_began_with_and_with_no_other(tmp_path: Path):
    found = resolved(tmp_path, f"cold_start.files=[{LOG}]")
    folder = found.settings.experiment_dir / "cold_start"
    folder.mkdir(parents=True)
    wanted = {
        **found.settings.cold_start.model_dump(mode="json"),
        "model": str(found.config.actor_rollout_ref.model.path),
    }

    (folder / "done.json").write_text(json.dumps({"wanted": wanted}))
    prepare(found.config, found.settings, ChatRenderer(build_real("qwen2_5")))
    assert found.config.actor_rollout_ref.model.path == str(folder.resolve() / "model")
    other = resolved(tmp_path, f"cold_start.files=[{LOG}]", "cold_start.epochs=5")
    with pytest.raises(ConfigError, match="has another cold start"):
        prepare(other.config, other.settings, ChatRenderer(build_real("qwen2_5")))


@pytest.mark.thorough
def test_demonstrations_are_made_of_the_run_s_own_environments_before_anything_is_imitated(tmp_path: Path, monkeypatch):
    keys = ("env_service.env_type={pocket: 1, calc: 2}", "env_service.environments.pocket.env_params.slack=2")
    found = resolved(tmp_path, f"cold_start.files=[reference:30,{LOG}]", "data.train_filter={}", *keys)
    monkeypatch.setattr(cold_start, "_train", lambda *_: None)
    run, commands = subprocess.run, list[list[str]]()
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: commands.append(command) or run(command, **options)
    )
    renderer = ChatRenderer(build_real("qwen2_5"))
    with pytest.raises(TrainingFailed, match="left no model"):
        prepare(found.config, found.settings, renderer)
    folder = found.settings.experiment_dir / "cold_start"
    made = {one.stem: one.read_text().splitlines() for one in folder.glob("demonstrations*.jsonl")}
    assert {name: len(lines) for name, lines in made.items()} == {
        "demonstrations.pocket": 10,
        "demonstrations.calc": 20,
    }
    assert len(commands) == 2 and "slack" not in str(commands), "every user can read a command line"
    assert len((folder / "episodes.jsonl").read_text().splitlines()) > 96


@pytest.mark.thorough
def test_what_has_no_reference_or_is_no_number_is_refused_by_its_key(tmp_path: Path):
    found = resolved(
        tmp_path, "cold_start.files=[reference:4]", "env_service.env_type=propose", "env_service.env_params={}"
    )
    with pytest.raises(ConfigError, match=r"cold_start.files = reference:4: .*propose has no reference_actions"):
        prepare(found.config, found.settings, ChatRenderer(build_real("qwen2_5")))
    for wrong in ("reference:", "reference:0", "reference:many"):
        with pytest.raises(ConfigError, match="number of demonstrations"):
            resolved(tmp_path, f"cold_start.files=['{wrong}']")


def mean_loss(model: torch.nn.Module, episodes: list[tuple[list[int], list[int]]]) -> float:
    """Mean negative log-prob of the tokens whose mask is 1; an episode is its ids and its mask."""
    losses = []
    for said, mask in episodes:
        ids = torch.tensor(said)
        with torch.no_grad():
            log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        losses.append(-log_probs[torch.tensor(mask[1:]) == 1])
    return float(torch.cat(losses).mean())


@pytest.mark.service
def test_only_what_the_assistant_said_counts_in_the_loss_and_a_killed_cold_start_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = tmp_path / "four.jsonl"
    files.write_text("".join(Path(LOG).read_text().splitlines(keepends=True)[:4]))
    # Weights so large that the losses of the two masks differ.
    model = build(tmp_path / "model", initializer_range=0.5)
    how = (f"actor_rollout_ref.model.path={model}", "cold_start.epochs=1", "cold_start.batch_size=4", *ROOM)
    found = resolved(tmp_path, f"cold_start.files=[{files}]", *how)
    experiment = found.settings.experiment_dir
    killed = experiment / "cold_start" / "checkpoints" / "global_step_9" / "huggingface"
    killed.mkdir(parents=True)
    (killed / "half.safetensors").write_bytes(b"half")
    (experiment / "config.yaml").write_text(as_yaml(resolve_config(found.config)))
    for name, value in found.config.device_env.items():
        monkeypatch.setenv(name, str(value))
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(model))

    prepare(found.config, found.settings, renderer)

    folder = experiment / "cold_start"
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    done = json.loads((folder / "done.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    assert done["steps"] == 1 and len(episodes) == 4
    said = mean_loss(base, [(one["ids"], one["mask"]) for one in episodes])
    everything = mean_loss(base, [(one["ids"], [1] * len(one["ids"])) for one in episodes])
    assert done["first_loss"] == pytest.approx(said, rel=1e-3)
    assert done["first_loss"] != pytest.approx(everything, rel=1e-2)
    assert not (folder / "model" / "half.safetensors").exists()
    made = AutoModelForCausalLM.from_pretrained(found.config.actor_rollout_ref.model.path)
    weights = base.state_dict()
    assert any(not torch.equal(weight, weights[name]) for name, weight in made.state_dict().items())
