"""Paired utility: shrunk towards 0 by count, from groups with variance alone, credited once, and good enough that
planted harmful experiences are pruned and good ones are not."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.config.checks import load
from agentevolver.recipes.utility.estimate import Pair, UtilityEstimate, credited, is_harmful, pairs_of
from agentevolver.recipes.utility.ranking import UtilityRanking, explores
from agentevolver.utils.errors import ConfigError
from benchmarks.utility import World, planted, play, pruned, section
from experience_manager.attempts import read_attempts
from experience_manager.backend import EmbeddedBackend
from experience_manager.errors import ExperienceError
from experience_manager.experience import from_reme, to_reme
from experience_manager.manager import ExperienceManager
from experience_manager.per_environment import BackendPerEnvironment
from experience_manager.question import Question
from experience_manager.ranking import RankingContext
from experience_manager.store import Store
from tests.experience_manager.experience_fakes import SMALL, STAMP, experience, ids_of, insert, record

BASIC = Path(__file__).parents[4] / "examples" / "basic.yaml"
DIFFERENCES = st.lists(st.floats(-1, 1), min_size=1, max_size=12)
SD = st.floats(0.05, 0.5)


def pair(difference, *ids, guided=4, unguided=4):
    return Pair(ids, difference, guided, unguided)


def ranking(store, source="run", **options):
    return UtilityRanking(RankingContext(store, "default", source), **options)


def half_guided(group, guided, unguided, ids=("a",)):
    """The rollouts of a group: outcomes of the guided half, and of the other."""
    told = {"experience_ids": ids, "injected": "<EXP>x</EXP>", "text": "x", "keep": False, "problem": ""}
    outcomes = [(score, told) for score in guided] + [(score, None) for score in unguided]
    return [
        record(group, number, score=score, guidance=guidance, group_id=group)
        for number, (score, guidance) in enumerate(outcomes)
    ]


def found(*groups):
    trajectories = [one for group in groups for one in group]
    return pairs_of(trajectories, read_attempts(trajectories))


@settings(max_examples=50, deadline=None)
@given(DIFFERENCES, SD)
def test_alone_in_its_groups_a_utility_is_the_mean_difference_shrunk_by_count(differences, sd):
    belief = UtilityEstimate()
    for difference in differences:
        (belief,) = credited([belief], pair(difference, "a"), sd)
    n, noise = len(differences), pair(0.0, "a").noise
    assert belief.groups == n
    assert belief.mean == pytest.approx(sum(differences) / n * n / (n + noise / sd**2), abs=1e-9)
    assert belief.variance(sd) == pytest.approx(1 / (sd**-2 + n / noise))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-0.5, 0.5), st.floats(0, 500)), min_size=1, max_size=6), st.floats(-1, 1), SD)
def test_a_group_moves_all_that_it_showed_towards_what_was_seen_and_the_least_known_most(known, difference, sd):
    before = [UtilityEstimate(1, mean, precision) for mean, precision in known]
    after = credited(before, pair(difference), sd)
    error = difference - sum(one.mean for one in before)
    moved = [new.mean - old.mean for old, new in zip(before, after, strict=True)]
    assert all(one * error >= 0 for one in moved) and abs(sum(moved)) <= abs(error) + 1e-9
    assert all(new.precision > old.precision for old, new in zip(before, after, strict=True))
    ordered = [abs(moved[i]) for i in np.argsort([one.precision for one in before], kind="stable")]
    assert all(a >= b - 1e-9 for a, b in pairwise(ordered))


@settings(max_examples=30, deadline=None)
@given(DIFFERENCES, SD)
def test_what_is_turned_round_has_the_opposite_utility(differences, sd):
    good, bad = UtilityEstimate(), UtilityEstimate()
    for difference in differences:
        (good,), (bad,) = credited([good], pair(difference), sd), credited([bad], pair(-difference), sd)
    assert bad.mean == pytest.approx(-good.mean) and bad.precision == good.precision


def test_a_difference_is_of_the_halves_means_and_groups_without_variance_or_without_a_half_are_left_out():
    mixed = half_guided("g1", (1.0, 1.0), (1.0, 0.0), ("a", "b"))
    told = found(
        mixed,
        half_guided("all", (1.0, 1.0), (1.0, 1.0)),
        half_guided("none", (0.0,), (0.0,)),
        half_guided("guided", (1.0, 0.0), ()),
        half_guided("failed", (1.0,), (None,)),
    )
    assert told.pairs == (Pair(("a", "b"), 0.5, 2, 2),) and told.without_variance == 2


def test_a_rollout_that_was_to_be_guided_and_was_not_is_in_neither_half():
    group = half_guided("g1", (1.0, 0.0), (0.0, 0.0))
    lost = record("g1", 4, score=1.0, group_id="g1", guidance_wanted=True, guidance_problem="no answer")
    assert found([*group, lost]) == found(group)
    assert found(group).pairs == (Pair(("a",), 0.5, 2, 2),)
    assert found([*half_guided("g2", (1.0,), ()), replace(lost, group_id="g2", rollout_id=1)]).pairs == ()


def test_a_step_is_credited_once_and_what_is_gone_is_passed_over(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        insert(store, experience(id="a"), experience("b", "b", id="b"))
        assert ranking(store).credit(3, [pair(-1.0, "a", "gone")])
    with Store(path) as store:
        once = store.get("default", "a")
        assert once.paired == 1 and once.paired_utility < 0
        # A run that was killed in between repeats steps.
        for step in (2, 3):
            assert not ranking(store).credit(step, [pair(-1.0, "a")])
        assert store.get("default", "a") == once and store.get("default", "b").paired == 0
        assert ranking(store, "another run").credit(3, [pair(-1.0, "a")])
        assert store.get("default", "a").paired == 2


def test_a_run_that_starts_over_is_credited_anew_and_one_that_was_killed_in_its_first_step_is_not(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, experience(id="a"))

        def credits(source, step):
            return ranking(store, source).credit(step, [pair(-1.0, "a")])

        assert credits("run", 1) and credits("run", 2) and credits("another run", 2)
        ranking(store).start_over()
        assert credits("run", 1) and store.get("default", "a").paired == 4
        assert not credits("run", 1) and not credits("another run", 2)
        ranking(store).start_over()
        assert not credits("run", 1) and credits("run", 2)


def test_a_credit_that_fails_half_way_changes_nothing(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, experience(id="a"))
        with closing(sqlite3.connect(tmp_path / "s.sqlite")) as db:
            db.execute("CREATE TRIGGER t BEFORE UPDATE ON records BEGIN SELECT RAISE(ABORT, 'no'); END")
            db.commit()
        with pytest.raises(Exception, match="no"):
            ranking(store).credit(1, [pair(1.0, "a")])
        with closing(sqlite3.connect(tmp_path / "s.sqlite")) as db:
            db.execute("DROP TRIGGER t")
            db.commit()
        assert ranking(store).credit(1, [pair(1.0, "a")])


def test_a_restored_pool_is_credited_again_from_the_step_that_it_was_saved_at(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, experience(id="a"))
        ranking(store).credit(1, [pair(1.0, "a")])
        store.copy_to(tmp_path / "copy")
        # A step without a pair: only how far the run is has changed.
        ranking(store).credit(2, [])
        store.restore(tmp_path / "copy", tmp_path / "aside")
        assert ranking(store).credit(2, [pair(1.0, "a")]) and store.get("default", "a").paired == 2


def test_only_what_surely_harms_is_pruned_and_never_what_is_pinned(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        bad = experience(id="bad", paired=20, paired_utility=-0.2, paired_precision=160.0)
        others = [
            replace(bad, id="pinned", content="p", pinned=True),
            replace(bad, id="doubtful", content="d", paired_utility=-0.05),
            replace(bad, id="good", content="g", paired_utility=0.2),
            experience(id="unknown", content="u"),
        ]
        insert(store, bad, *others)
        assert ranking(store).prune() == 1
        assert ids_of(store) == {one.id for one in others}
    assert not is_harmful(UtilityEstimate(), 0.2, 0.0)


def test_a_utility_comes_through_a_dump_and_goes_with_the_wording_that_earned_it(tmp_path):
    one = experience(id="a", paired=2, paired_utility=-0.125, paired_precision=16.0)
    assert from_reme(to_reme(one)) == one
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, one)
        rival = experience("deleting a note", "never read its doc", id="r", support=5)
        vectors = SMALL.encode([rival.embedded_text("when_to_use+content")])
        assert store.add("default", [rival], vectors, STAMP, lambda *_: True).outvoted == 1
        joined = store.get("default", "a")
        assert joined.content == "never read its doc" and (joined.paired, joined.paired_utility) == (0, 0.0)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_so_many_training_tasks_of_a_step_explore_and_no_validation(share):
    places = [Question("t", (), step=7, place=place) for place in range(16)]
    assert sum(explores(one, share) for one in places) == 16 * share
    assert not any(explores(replace(one, validation=True), share) for one in places)


async def first_shown(folder, validation, **utility):
    settings = section(1, **utility) if utility else section(1).model_copy(update={"ranking": None})
    backend = EmbeddedBackend.open(settings, folder, encoder=SMALL)
    texts = {"near": "delete a note", "far": "delete a letter"}
    known = {"near": -0.3, "far": 0.3}
    backend.pool.put(
        [
            experience(text, name, id=name, paired=5, paired_utility=known[name], paired_precision=40.0 + len(name))
            for name, text in texts.items()
        ]
    )
    messages = ({"role": "user", "content": "delete a note near"},)
    hit = await backend.retrieve(Question("t", messages, validation=validation))
    await backend.aclose()
    return hit.experiences[0].id


async def test_ranking_weighs_utility_against_similarity_and_exploring_shows_the_most_doubtful(tmp_path):
    assert await first_shown(tmp_path / "1", True, rank_weight=0.0) == "near"
    assert await first_shown(tmp_path / "2", True, rank_weight=2.0) == "far"
    assert await first_shown(tmp_path / "3", False, rank_weight=2.0, explore=1.0) == "near"
    assert await first_shown(tmp_path / "4", True) == "near"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (["exp_manager.ranking=utility"], "exp_manager.train_rollout_mode, now woexp, to mixed"),
        (["exp_manager.ranking={use: utility, prior_sd: 2}"], r"exp_manager\.ranking\.prior_sd: .*found 2"),
        (["exp_manager.ranking=utilty"], "write one of utility"),
        (["exp_manager.utility.enable=true"], "write exp_manager.ranking=utility"),
    ],
)
def test_what_could_not_compare_halves_is_refused(written, words):
    with pytest.raises(ConfigError, match=words):
        load(BASIC, ["device=cpu", *written])


def test_a_configuration_names_it_by_a_word_or_with_options():
    half = ["device=cpu", "exp_manager.train_rollout_mode=mixed", "exp_manager.rollout_ratio=0.5"]
    half += ["exp_manager.reme.enable_context_generator=true", "exp_manager.init_exp_before_training=true"]
    for written in ("exp_manager.ranking=utility", "exp_manager.ranking.use=utility"):
        assert load(BASIC, [*half, written]).settings.exp_manager.ranking.use == "utility"
    options = load(BASIC, [*half, "exp_manager.ranking={use: utility, explore: 0.25}"]).settings.exp_manager.ranking
    assert options.options == {"explore": 0.25}


async def test_a_run_that_repeats_its_steps_counts_no_group_twice(tmp_path):
    with Store(tmp_path / "experience.sqlite") as store:
        insert(store, *planted())
    seen = []
    # As a run does that was killed after its second step, and goes on from its first checkpoint.
    for first in (1, 2, 1):
        backend = EmbeddedBackend.open(section(), tmp_path, encoder=SMALL)
        manager = ExperienceManager(section(), backend)
        metrics = await play(manager, World(tasks=4, steps=2), np.random.default_rng(5), first)
        seen.append({one.id: one.paired for one in backend.pool.store.records("default")})
        await manager.aclose(1.0)
    assert sum(seen[0].values()) > 0 and seen[0] == seen[1] == seen[2]
    assert metrics["exp_manager/utility/groups"] == 0 and metrics["exp_manager/utility/known"] > 0


@pytest.mark.parametrize("starts_over", [True, False])
@pytest.mark.parametrize("apart", [True, False])
async def test_a_run_that_starts_over_counts_its_steps_again(tmp_path, starts_over, apart):
    with Store(tmp_path / "experience.sqlite") as store:
        insert(store, *planted())
    seen = []
    for begins_anew in (False, starts_over):
        backend = opened = EmbeddedBackend.open(section(), tmp_path, encoder=SMALL)
        if apart:
            backend = BackendPerEnvironment({"pocket": opened})
        manager = ExperienceManager(section(), backend)
        if begins_anew:
            await manager.start_over()
        guided = [
            replace(one, task=replace(one.task, env_type="pocket"))
            for one in half_guided("g", (1.0, 1.0), (0.0,), (planted()[0].id,))
        ]
        seen.append(0.0)
        for step in (1, 2):
            for one in guided:
                if one.guided:
                    await manager.injected(one.guidance.experience_ids)
            metrics = await manager.record_step(step, guided)
            seen[-1] += metrics["exp_manager/utility/groups/pocket" if apart else "exp_manager/utility/groups"]
        await manager.aclose(1.0)
    assert seen == [2.0, 2.0 if starts_over else 0.0]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
async def test_of_ten_planted_nine_are_pruned_within_ten_steps_and_of_ten_good_one_at_most(tmp_path, seed):
    harmful, good = await pruned(tmp_path, seed, World(), section(3))
    assert harmful >= 9 and good <= 1


def test_the_variance_of_a_difference_is_that_of_fair_coins_at_most():
    rng = np.random.default_rng(0)
    drawn = rng.binomial(4, 0.5, 4000) / 4 - rng.binomial(2, 0.5, 4000) / 2
    assert math.isclose(pair(0.0, guided=4, unguided=2).noise, drawn.var(), rel_tol=0.1)


def test_wrong_options_are_one_line_where_no_recipe_checks_them(tmp_path):
    with pytest.raises(ExperienceError, match=r"exp_manager\.ranking: .*prior_sd"):
        EmbeddedBackend.open(section(prior_sd=2), tmp_path, encoder=SMALL)
