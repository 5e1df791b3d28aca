"""Self-play: ratings by the scores of games, the pool of checkpoints, and that a resume meets the same opponents."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.config.checks import load
from agentevolver.launcher.stack import Launch
from agentevolver.recipes.self_play.part import (
    FIRST,
    START,
    STATE,
    OpponentPool,
    SelfPlay,
    expected,
    gain,
    seated,
    win_rates,
)
from agentevolver.recipes.self_play.service import services
from agentevolver.recipes.self_play.settings import SelfPlaySettings
from agentevolver.utils.errors import ConfigError, TrainingFailed, UsageError
from tests.free_ports import free_port
from tests.trajectories import trajectory

CONF = Path(__file__).parents[1] / "examples" / "self_play.yaml"
RATING = st.floats(0, 3000)


@given(RATING, RATING, st.floats(0, 1), st.floats(1, 100))
def test_what_one_wins_the_other_loses_and_a_step_moves_at_most_k(own, other, score, k):
    assert gain(own, other, score, k) == pytest.approx(-gain(other, own, 1 - score, k), abs=1e-6)
    assert abs(gain(own, other, score, k)) <= k and 0 <= expected(own, other) <= 1
    assert expected(own, other) + expected(other, own) == pytest.approx(1)


def test_the_odds_are_ten_to_one_by_400_points_and_ratings_settle_where_the_score_is_expected():
    assert expected(1400, 1000) == pytest.approx(10 / 11)
    pool = OpponentPool(SelfPlaySettings(), "/start")
    for _ in range(300):
        pool.rate(START, [1.0, 1.0, 1.0, 0.0])
    assert pool.elo - FIRST == pytest.approx(400 * math.log10(3), abs=2)
    assert pool.members[0].elo == FIRST and pool.members[0].games == 1200


def joined(count, **section):
    pool = OpponentPool(SelfPlaySettings(**section), "/start")
    gone = [[member.name for member in pool.join(f"step_{i}", f"self_play/step_{i}")] for i in range(count)]
    return pool, gone


def test_the_oldest_but_the_start_makes_room():
    pool, gone = joined(4, pool=2)
    assert [member.name for member in pool.members] == [START, "step_2", "step_3"]
    assert gone == [[], [], ["step_0"], ["step_1"]]
    pool.join("step_3", "self_play/step_3")
    assert [member.name for member in pool.members] == [START, "step_2", "step_3"], "a step that is repeated joins once"


def test_who_joins_has_the_rating_of_the_policy_and_loses_what_it_wins():
    pool, _ = joined(0)
    pool.rate(START, [1.0])
    pool.join("step_1", "self_play/step_1")
    before = pool.elo
    assert pool.members[1].elo == before > FIRST
    pool.rate("step_1", [1.0] * 4)
    assert pool.elo - before == pytest.approx(before - pool.members[1].elo) and pool.members[1].games == 4


def test_an_opponent_follows_from_seed_step_and_ratings():
    pool, _ = joined(3)
    drawn = [pool.draw(1, step).name for step in range(200)]
    assert drawn == [pool.draw(1, step).name for step in range(200)]
    assert set(drawn) == {START, "step_0", "step_1", "step_2"}
    assert drawn != [pool.draw(2, step).name for step in range(200)]


def test_who_is_likely_to_win_is_met_more_often():
    pool, _ = joined(1)
    for _ in range(20):
        pool.rate(START, [1.0])
    pool.join("step_1", "self_play/step_1")
    drawn = [pool.draw(1, step).name for step in range(300)]
    assert drawn.count("step_1") > 2 * max(drawn.count("step_0"), drawn.count(START)) > 0


@pytest.fixture
def made(tmp_path):
    def make(*overrides):
        settings = load(CONF, ["device=cpu", f"experiment.root={tmp_path}", *overrides]).settings
        return SelfPlay(settings), settings.experiment_dir

    return make


def checkpoint(directory, step, weights=True):
    folder = directory / "checkpoints" / f"global_step_{step}"
    (folder / "actor" / "huggingface").mkdir(parents=True)
    if weights:
        for name in ("config.json", "model.safetensors"):
            (folder / "actor" / "huggingface" / name).write_text(f"{name} {step}")
    return folder


def played(score, env_type="textarena", stop_reason="finished"):
    outcome = {"score": score, "success": score >= 1.0}
    return trajectory(task={"env_type": env_type}, group_id="g", outcome=outcome, stop_reason=stop_reason)


def test_a_step_is_played_against_one_of_the_pool_and_rates_it(made):
    play, directory = made()
    tasks = [{"task_id": "a", "env_type": "textarena"}, {"task_id": "b", "env_type": "pocket", "metadata": {"x": 1}}]
    told = play.before_rollouts(tasks, 1)
    assert told[0]["metadata"] == {"env_params": {"checkpoint": "experiments/self_play/start/policy"}}
    assert told[1] == tasks[1] and "metadata" not in tasks[0], "what the loader holds stays as it is"
    metrics = play.after_rollouts(
        1, [played(1.0), played(0.5), played(1.0, "pocket"), played(0.0, stop_reason="env_error")]
    )
    assert metrics["self_play/games"] == 2 and metrics["self_play/score"] == 0.75
    assert metrics["self_play/elo/policy"] == FIRST + 64 * 0.25 and metrics["self_play/elo/opponent"] == FIRST
    assert json.loads((directory / STATE).read_text())["elo"] == FIRST + 16


def test_the_pool_outlives_the_checkpoints_and_a_resume_meets_the_same_opponents(made):
    play, directory = made("recipes.self_play.every=2", "trainer.save_freq=1")
    saved = {}
    for step in range(1, 7):
        play.after_rollouts(step, [played(1.0)])
        saved[step] = checkpoint(directory, step)
        play.save(saved[step], step)
    assert [member.name for member in play.pool.members] == [START, "step_2", "step_4", "step_6"]
    kept = directory / "self_play" / "step_4" / "model.safetensors"
    for file in (saved[4] / "actor" / "huggingface").iterdir():
        file.unlink()
    assert kept.read_text() == "model.safetensors 4"
    met = [play.opponent(step).name for step in range(7, 27)]
    again, _ = made("recipes.self_play.every=2", "trainer.save_freq=1")
    again.restore(saved[6])
    assert [again.opponent(step).name for step in range(7, 27)] == met and len(set(met)) > 2
    assert again.pool.state_dict() == play.pool.state_dict()
    earlier, _ = made()
    earlier.restore(saved[3])
    assert [member.name for member in earlier.pool.members] == [START, "step_2"]


def test_weights_go_when_neither_pool_nor_checkpoint_knows_them(made):
    play, directory = made("recipes.self_play.every=1", "trainer.save_freq=1", "recipes.self_play.pool=1")
    first = checkpoint(directory, 1)
    play.save(first, 1)
    play.save(checkpoint(directory, 2), 2)
    folder = directory / "self_play"
    assert {path.name for path in folder.iterdir()} == {"step_1", "step_2"}, "the first checkpoint knows step_1"
    (first / STATE).unlink()
    play.save(checkpoint(directory, 3), 3)
    assert {path.name for path in folder.iterdir()} == {"step_2", "step_3"}


def test_a_pool_that_cannot_be_restored_or_kept_ends_the_run_with_a_line(made):
    play, directory = made()
    with pytest.raises(TrainingFailed, match="save_contents must name hf_model"):
        play.save(checkpoint(directory, 10, weights=False), 10)
    with pytest.raises(TrainingFailed, match="is unknown"):
        play.restore(directory)
    (directory / STATE).write_text(json.dumps({"elo": 1.0, "members": []}))
    with pytest.raises(TrainingFailed, match="does not begin with the start"):
        play.restore(directory)
    members = [{"name": name, "folder": f"self_play/{name}", "elo": 1.0} for name in (START, "step_10")]
    (directory / STATE).write_text(json.dumps({"elo": 1.0, "members": members}))
    with pytest.raises(TrainingFailed, match="step_10 is missing"):
        play.restore(directory)


def test_a_task_keeps_its_other_parameters():
    task = {"task_id": "a", "metadata": {"split": "train", "env_params": {"max_steps": 3}}}
    assert seated(task, "/p")["metadata"] == {"split": "train", "env_params": {"max_steps": 3, "checkpoint": "/p"}}


def test_a_validation_tells_wins_with_their_interval():
    games = [played(1.0)] * 3 + [played(0.5)] * 2 + [played(0.0)] * 3 + [played(1.0, "pocket")]
    found = win_rates(games, SelfPlaySettings(enable=True))
    assert (found["val-self_play/win_rate"], found["val-self_play/score"]) == (3 / 8, 0.5)
    interval = [found[f"val-self_play/win_rate_{end}"] for end in ("low", "high")]
    assert interval == pytest.approx([0.1368, 0.6943], abs=1e-4), "Wilson's"
    assert found["val-self_play/games"] == 8 and win_rates([], SelfPlaySettings()) == {}


def test_the_start_is_played_by_whoever_is_not_told_of_another():
    settings = load(CONF, ["device=cpu"]).settings
    (environment,) = settings.environments
    for validation in (True, False):
        assert environment.params(validation=validation)["checkpoint"] == "experiments/self_play/start/policy"
    (plain,) = load(CONF, ["device=cpu", "recipes.self_play.enable=false"]).settings.environments
    assert "checkpoint" not in plain.params(validation=True)


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("recipes.self_play.env_type=pocket", "not one of the run's environments"),
        ("recipes.self_play.every=7", "multiple of trainer.save_freq = 10"),
        ("trainer.save_freq=-1", "multiple of trainer.save_freq = -1"),
        ("actor_rollout_ref.rollout.sparse=true", "a draw would count as a loss"),
        ("actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]", "must name hf_model"),
        ("trainer.weights=/somewhere", "begins with actor_rollout_ref.model.path"),
        ("recipes.self_play.draw=uniform", "is fixed at matched; remove it"),
        ("recipes.self_play.pool=0", "greater than or equal to 1"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(override, match):
    with pytest.raises(ConfigError, match=match) as refused:
        load(CONF, ["device=cpu", override])
    assert "\n" not in str(refused.value)


def test_environments_are_told_where_frozen_policies_answer(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    chosen = load(CONF, ["device=cpu", f"experiment.root={tmp_path}", f"recipes.self_play.url={url}"])
    made = services(Launch(chosen.settings, chosen.config, "agentevolver.trainer.job.main"))
    (player,) = made.specs
    assert made.paths[0].endswith("/self_play") and made.paths[1].endswith("/start/policy")
    assert made.env == {"ENV_PLAYER_URL": url} and made.config == {"recipes": {"self_play": {"url": url}}}
    assert player.health_urls == (f"{url}/healthz",) and player.needed and player.restarts > 0
    assert services(Launch(chosen.settings, chosen.config, None)) is None, "no run, no player"
    elsewhere = load(CONF, ["device=cpu", "recipes.self_play.url=http://elsewhere:1"])
    with pytest.raises(UsageError, match=r"self_play\.url=http://elsewhere:1"):
        services(Launch(elsewhere.settings, elsewhere.config, "agentevolver.trainer.job.main"))
