"""Sampled episodes are what the model says, token for token, and what the environment says of them."""

from dataclasses import replace

import pytest
import torch

from agentevolver.recipes.offline.seed.data import open_turn, opening_text
from agentevolver.recipes.offline.seed.evaluate import episode, evaluate
from agentevolver.recipes.offline.seed.sampler import Sampler
from agentevolver.recipes.offline.seed.syntax import COMPACT
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tests.replays import hint, replay

pytestmark = pytest.mark.service

TASKS = PocketEnv.get_query_list("dev")[:16]


def sample(model, tokenizer, seed=0, hinted=False, **options):
    episodes = [episode(task_id, hint(task_id) if hinted else "") for task_id in TASKS]
    return Sampler(model, tokenizer).sample(episodes, generator=torch.Generator().manual_seed(seed), **options)


def test_log_probabilities_are_those_of_a_plain_forward_pass(model, tokenizer):
    for rollout in sample(model, tokenizer, hinted=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([rollout.ids])).logits[0]
        expected = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(rollout.ids[1:])[:, None])[:, 0]
        mine = torch.tensor(rollout.is_action[1:])
        assert torch.allclose(expected[mine], torch.tensor(rollout.logprobs[1:])[mine], atol=1e-4)


def test_ids_are_the_opening_then_sampled_turns_and_observations(model, tokenizer):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    for rollout in sample(model, tokenizer):
        at = len(ids(opening_text(PocketEnv(rollout.task_id, "i").get_init_state()["state"])))
        assert not any(rollout.is_action[:at])
        for action, observation in zip(rollout.actions, [*rollout.observations[:-1], None], strict=True):
            end = rollout.ids.index(tokenizer.eos_token_id, at)
            assert tokenizer.decode(rollout.ids[at:end]) == action and all(rollout.is_action[at : end + 1])
            at = end + 1
            if observation is not None:
                given = ids(open_turn([{"role": "user", "content": observation}]))
                assert rollout.ids[at : at + len(given)] == given and not any(rollout.is_action[at : at + len(given)])
                at += len(given)
        assert at == len(rollout.ids)


def test_rewards_are_those_of_a_replay(model, tokenizer):
    for rollout in sample(model, tokenizer):
        again = replay(rollout.task_id, rollout.actions, slack=1)
        assert rollout.reward == again.sparse
        assert tuple(rollout.observations) == again.observations


def test_a_seed_repeats_the_episodes_and_temperature_zero_needs_none(model, tokenizer):
    assert sample(model, tokenizer, seed=1) == sample(model, tokenizer, seed=1)
    assert sample(model, tokenizer, seed=1) != sample(model, tokenizer, seed=2)
    greedy = [[r.actions for r in sample(model, tokenizer, seed=s, temperature=0.0)] for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_an_endless_turn_is_cut_and_the_episode_still_ends(model, tokenizer):
    rollouts = Sampler(model, tokenizer, syntax=replace(COMPACT, turn_tokens=1)).sample(
        [episode(task_id) for task_id in TASKS[:4]], generator=torch.Generator().manual_seed(0)
    )
    assert all(r.stop_reason in ("finished", "max_steps") and max(map(len, r.actions)) > 0 for r in rollouts)


def test_an_episode_that_outgrows_its_context_is_not_called_finished(model, tokenizer):
    rollouts = Sampler(model, tokenizer, max_tokens=60).sample(
        [episode(task_id) for task_id in TASKS], generator=torch.Generator().manual_seed(0)
    )
    assert all(len(r.ids) <= 60 for r in rollouts)
    assert {r.stop_reason for r in rollouts} >= {"context_full"}


def test_best_of_n_is_at_least_the_average_and_at_most_n_times_it(model, tokenizer):
    report = evaluate(model, tokenizer, tasks=TASKS, n=3)
    assert report.avg <= report.best <= 3 * report.avg
    assert set(report.by("level")) == {"1", "2", "3", "4"}
    assert abs(sum(report.by("family").values()) / 16 - report.avg) < 1e-2
