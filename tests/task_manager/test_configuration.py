import pytest
import yaml

from agentevolver.cli.commands.task_manager import main
from task_manager.settings import QuestioningConfiguration, TaskManagerSettings
from task_manager.synthetic_tasks import seeds_of_round

WORLD = {"env_service": {"env_type": "pocket"}}


def write(tmp_path, **sections):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def test_models_differ_by_endpoint_and_sampling():
    def models(**llm):
        return QuestioningConfiguration.model_validate({**WORLD, "llm": llm}).models

    base = models()
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
        (["stats", "--settings", "{s}"], 1, "there is no journal yet"),
        (["synthesize", "--settings", "{s}", "task_manager.env_profile=gone.json"], 2, "gone.json: cannot be read"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_status(tmp_path, monkeypatch, capsys, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    path = write(
        tmp_path,
        env_service={**WORLD["env_service"], "env_url": "http://127.0.0.1:9"},
        task_manager={"train_data_path": "t.jsonl"},
    )
    assert main([argument.replace("{s}", str(path)) for argument in arguments]) == status
    errors = capsys.readouterr().err.strip().splitlines()
    assert message in errors[-1] and not any("Traceback" in line for line in errors)
