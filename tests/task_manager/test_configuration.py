"""The section and the files the commands read: every key is known, every mistake is one line."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

import agentevolver.llm.embeddings
import task_manager.settings
from agentevolver.cli.commands.task_manager import main
from agentevolver.config.parts import from_settings_file
from agentevolver.utils.errors import ConfigError
from task_manager.settings import QuestioningConfiguration, TaskManagerSettings
from task_manager.synthetic import seeds_of_round


def write(tmp_path, **sections):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def test_the_originals_names_are_taken():
    section = {
        "n": 8,
        "env_profile": "p.json",
        "train_data_path": "x.jsonl",
        "num_explore_threads": 4,
        "mixture": {"use_original_tasks": False, "synthetic_data_ratio": 999999.0, "shuffle": True},
        "grader": {"original_grader": "env", "synthetic_grader": "llm-binary-gt-no_constraint"},
        "strategy": "random",
        "strategy_args": {
            "max_explore_step": 30,
            "exploration_llm_temperature": 1.0,
            "exploration_llm_top_p": 1.0,
            "exploration_llm_top_k": 100,
        },
    }
    settings = TaskManagerSettings.model_validate(section)
    assert (
        settings.store_path == Path("x.jsonl.d") and settings.mixture.needs_synthetic and not settings.mixture.is_hybrid
    )


def sections_of(kind):
    yield kind
    for field in kind.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections_of(field.annotation)


# Read outside of this package: by whoever lists the environment's own tasks, and by the trainer's closed loop.
READ_ELSEWHERE = {"original_grader", "env_types", "every", "window_steps", "share"}


def test_every_key_is_documented_and_read_somewhere():
    root = Path(task_manager.settings.__file__).parent
    source = "".join(path.read_text() for path in [*root.rglob("*.py"), Path(agentevolver.llm.embeddings.__file__)])
    for section in sections_of(TaskManagerSettings):
        for name, field in section.model_fields.items():
            is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert is_section or field.description or name.startswith("exploration_llm"), f"{name} is not documented"
            assert name in READ_ELSEWHERE or re.search(rf"\.{name}\b", source), f"nothing reads {name}"


def test_sections_and_overrides_come_together(tmp_path):
    path = write(tmp_path, task_manager={"n": 2}, env_service={"env_type": "bfcl"})
    made = from_settings_file(
        path, ["task_manager.n=3", "task_manager.mixture.synthetic_data_ratio=0.5", "data.val_splits=[val]"]
    )
    assert (made.task_manager.n, made.env_service.env_type, made.data.val_splits) == (3, "bfcl", ["val"])
    assert made.task_manager.mixture.is_hybrid


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"task_manager": {"bs": 3}}, r"s\.yaml: task_manager\.bs: extra inputs"),
        (
            {"task_manager": {"strategy": "deduplication"}},
            r"task_manager\.strategy: .*'random' or 'curious'.*found 'deduplication'",
        ),
        ({"task_manager": {"n": -1}}, r"task_manager\.n: .*greater than or equal to 0"),
        ({"task_manager": {"mixture": {"use_original_tasks": False}}}, r"task_manager\.mixture: .*no task to train on"),
        ({"task_manager": {"strategy_args": {"breadth_steps": 0, "depth_steps": 0}}}, "at least one step"),
        ({"games": {}}, r"games: extra inputs"),
    ],
)
def test_a_wrong_key_or_value_is_one_line(tmp_path, sections, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_settings_file(write(tmp_path, **sections))
    assert "\n" not in str(caught.value)


def test_models_differ_by_endpoint_sampling_and_the_teachers_seed():
    def models(**llm):
        return QuestioningConfiguration.model_validate({"llm": llm}).models

    base = models()
    assert models(teacher={"seed": 7})["judge"] != base["judge"]
    other = models(roles={"judge": {"base_url": "https://example.org/v1", "model": "m"}})
    assert other["judge"] != base["judge"] and other["explorer"] == base["explorer"]
    assert models(sampling={"temperature": 0.1})["explorer"] != base["explorer"]
    assert "api_key" not in str(base) and models(timeout_s=3) == base


def test_a_later_round_takes_the_next_seeds():
    seeds = [*"abcde"]
    settings = TaskManagerSettings(max_seed_tasks=2)
    taken = [seeds_of_round(seeds, settings.model_copy(update={"round": number})) for number in range(4)]
    assert taken == [("a", "b"), ("c", "d"), ("e", "a"), ("b", "c")]
    assert seeds_of_round(seeds, TaskManagerSettings(round=3)) == tuple("abcde")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["synthesize", "--settings", "no.yaml"], 2, "configuration: no.yaml: no such file"),
        (["synthesize", "task_manager.n=1"], 2, "key=value needs --conf or --settings"),
        (["stats", "--settings", "{s}"], 1, "there is no journal yet"),
        (["show", "--settings", "{s}"], 1, "there is no journal yet"),
        (["synthesize", "--settings", "{s}"], 1, "error: "),
        (["verify", "--settings", "{s}"], 2, "configuration: "),
        (["synthesize", "--settings", "{s}", "task_manager.env_profile=gone.json"], 2, "gone.json: cannot be read"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_status(tmp_path, monkeypatch, capsys, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    path = write(
        tmp_path,
        env_service={"env_url": "http://127.0.0.1:9"},
        task_manager={"train_data_path": "t.jsonl", "unavailable_timeout_s": 0},
    )
    assert main([argument.replace("{s}", str(path)) for argument in arguments]) == status
    errors = capsys.readouterr().err.strip().splitlines()
    assert message in errors[-1] and not any("Traceback" in line for line in errors)
