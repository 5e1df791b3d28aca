"""The long tasks: chains of pocket's goals, graded goal by goal."""

import pytest
from transformers import AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.long_env import LONG, MIN_CALLS, PocketLongEnv, make_chain
from env_service.environments.pocket.tasks import SPLITS, split_world_id
from env_service.environments.pocket.tests.references import long_reference


def act(env, text):
    return env.step({"role": "assistant", "content": text})


def play(task_id, actions, **params):
    env = PocketLongEnv(task_id, "i", params)
    messages = env.get_init_state()["state"]
    result = None
    for text in actions:
        result = act(env, text)
        messages += [{"role": "assistant", "content": text}, *result["state"]]
    return env, result, messages


def by_goal(task_id):
    """The reference solution, a list of calls for each goal."""
    return [[str(call) for call in goal.solution] for goal in make_chain(task_id).goals]


@pytest.mark.thorough
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("syntax", ["compact", "json"])
def test_every_reference_solution_succeeds_without_slack(split, syntax):
    for task_id in PocketLongEnv.get_query_list(split, {"n": 24}):
        env, result, _ = play(task_id, long_reference(task_id, syntax), slack=0, syntax=syntax)
        assert result["is_terminated"] and result["info"]["stop_reason"] == "finished"
        assert result["reward"] == env.evaluate() == env.evaluate(params={"sparse": False}) == 1.0
        assert env.errors == 0
        assert result["info"]["goals_ended"] == result["info"]["goals_solved"] == len(make_chain(task_id).goals)


@pytest.mark.parametrize("sparse", [True, False])
def test_rewards_add_up_to_the_outcome_and_dense_ones_come_with_the_goals(sparse):
    task_id = PocketLongEnv.get_query_list("dev", {"n": 1})[0]
    goals = by_goal(task_id)
    env = PocketLongEnv(task_id, "i", {"sparse": sparse})
    rewards = []
    for number, calls in enumerate(goals):
        # Every third goal is given up.
        rewards += [act(env, call)["reward"] for call in (["done"] if number % 3 == 2 else calls)]
    paid = [reward for reward in rewards if reward]
    assert sum(rewards) == pytest.approx(env.evaluate()) and env.is_over
    assert paid == [] if sparse else paid == pytest.approx([1 / len(goals)] * (len(goals) - len(goals) // 3))


def test_a_task_takes_more_than_thirty_turns_whose_observations_alone_overflow_512_tokens():
    tokenizer = AutoTokenizer.from_pretrained(seed_policy_path())
    for split in SPLITS:
        for task_id in PocketLongEnv.get_query_list(split, {"n": 12}):
            _, _, messages = play(task_id, long_reference(task_id))
            assert len([m for m in messages if m["role"] == "assistant"]) >= MIN_CALLS > 30
            observations = [m for m in messages[2:] if m["role"] == "user"]
            assert len(tokenizer.encode(tokenizer.apply_chat_template(observations, tokenize=False))) > 512, task_id


@pytest.mark.parametrize("split", SPLITS)
def test_ending_every_goal_at_once_scores_nothing(split):
    for task_id in PocketLongEnv.get_query_list(split, {"n": 12}):
        env, result, _ = play(task_id, ["done"] * len(make_chain(task_id).goals))
        assert result["is_terminated"] and result["reward"] == env.evaluate(params={"sparse": False}) == 0.0


def test_the_answer_to_done_is_the_next_goal_in_the_words_of_pocket_alone():
    task_id = "long.k3.17"
    env = PocketLongEnv(task_id, "i")
    goals = make_chain(task_id).goals
    assert env.get_init_state()["state"][1]["content"] == goals[0].query
    seen = []
    for calls in by_goal(task_id):
        for text in calls:
            last = act(env, text)["state"][0]["content"]
        seen.append(last)
    assert seen == [*(goal.query for goal in goals[1:]), "bye"]


def test_a_goal_that_was_missed_costs_itself_and_no_other():
    task_id = "long.k3.17"
    calls = by_goal(task_id)
    # Later goals rely on a login and on manuals that were read: whoever misses those must do them later.
    apart = [
        i
        for i, goal in enumerate(calls)
        if not any(text.startswith(("bank.login", "doc ", "shop.find")) for text in goal)
    ]
    assert len(apart) > 10
    for missed in apart:
        rest = [
            text for i, goal in enumerate(calls) for text in (["note.add milk home", "done"] if i == missed else goal)
        ]
        env, result, _ = play(task_id, rest, slack=9)
        assert result["info"]["goals_solved"] == len(calls) - 1, missed
        assert env.evaluate(params={"sparse": False}) == pytest.approx(1 - 1 / len(calls))
        assert env.evaluate() == 0.0


def test_after_each_goal_the_world_is_as_the_reference_solution_leaves_it():
    task_id = "long.k3.17"
    env = PocketLongEnv(task_id, "i")
    for goal in make_chain(task_id).goals:
        assert env.world.tables.facts() == goal.start
        act(env, "mail.send bob milk")
        act(env, "done")
        assert env.world.tables.facts() == goal.goal


def test_what_was_read_and_where_one_logged_in_stays():
    task_id = next(t for t in PocketLongEnv.get_query_list("dev") if "bank.login" in " ".join(long_reference(t)))
    calls = long_reference(task_id)
    assert sum(text.startswith("bank.login") for text in calls) == 1
    manuals = [text for text in calls if text.startswith("doc ")]
    assert len(manuals) == len(set(manuals))


def test_the_budget_is_the_reference_solution_and_slack_for_each_goal():
    task_id = "long.k3.17"
    chain = make_chain(task_id)
    for slack in (0, 2):
        env = PocketLongEnv(task_id, "i", {"slack": slack})
        budget = chain.calls + slack * len(chain.goals)
        assert env.get_init_state()["info"]["max_steps"] == budget
        results = [act(env, "cal.find bob") for _ in range(budget)]
        assert [r["is_terminated"] for r in results] == [False] * (budget - 1) + [True]
        assert results[-1]["info"]["stop_reason"] == "max_steps" and results[-1]["reward"] == 0.0


def test_a_chain_has_each_family_once_and_names_nothing_in_doubt():
    for task_id in PocketLongEnv.get_query_list("train", {"n": 40}):
        goals = make_chain(task_id).goals
        names = [goal.family for goal in goals]
        assert len(set(names)) == len(names) and set(names) <= set(FAMILIES)
        for goal in goals:
            for table in (goal.tables.notes, goal.tables.meetings, goal.tables.mails, goal.tables.orders):
                assert len({row[0] for row in table.values()}) == len(table)


def test_splits_are_pockets_by_sites_seeds_and_wording():
    lists = {split: PocketLongEnv.get_query_list(split) for split in SPLITS}
    assert {split: len(ids) for split, ids in lists.items()} == {"train": 600, "dev": 48, "test": 48, "hard": 48}
    for split, ids in lists.items():
        spec = SPLITS[split]
        assert len(set(ids)) == len(ids)
        for task_id in ids:
            _, site, seed = split_world_id(task_id, LONG)
            assert site in spec.sites and spec.first_seed <= seed < spec.first_seed + spec.n_seeds
    held_out = {FAMILIES[goal.family].wordings[2].split()[0] for goal in make_chain(lists["hard"][0]).goals}
    assert {goal.query.split()[0] for goal in make_chain(lists["hard"][0]).goals} == held_out
    assert PocketLongEnv.get_query_list("dev", {"n": 5}) == lists["dev"][:5]


@pytest.mark.parametrize("task_id", ["long.k3", "long.k32.1", "pay.k3.1", "long.k3.017", ""])
def test_a_wrong_id_is_refused(task_id):
    with pytest.raises(ValueError, match=r"long\.kSITE\.SEED|does not exist"):
        PocketLongEnv(task_id, "i")


@pytest.mark.parametrize(
    ("split", "params"), [("nowhere", {}), ("dev", {"n": 0}), ("dev", {"levels": [1]}), ("dev", {"m": 1})]
)
def test_a_wrong_list_is_refused(split, params):
    with pytest.raises(ValueError, match=r"split|levels|unknown"):
        PocketLongEnv.get_query_list(split, params)
