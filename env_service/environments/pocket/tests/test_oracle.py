"""The oracle: true hints, labels, replays."""

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.quirks import N_SITES, quirks_of
from env_service.environments.pocket.tasks import SPLITS
from env_service.environments.pocket.tests.replays import hint, hint_parts, label_steps, lesson, reference, replay


def test_the_hint_depends_on_the_site_alone_and_tells_sites_apart():
    assert hint("pay.k3.1") == hint("note_del.k3.999") == hint("open.k3.5")
    assert len({hint(f"pay.k{site}.1") for site in range(N_SITES)}) == N_SITES
    assert "\n" not in hint("pay.k3.1") and len(hint_parts("pay.k3.1")) == 5


@pytest.mark.thorough
@pytest.mark.parametrize("split", SPLITS)
def test_every_step_of_a_reference_solution_is_good(split):
    for task_id in PocketEnv.get_query_list(split):
        assert set(label_steps(task_id, reference(task_id))) == {"GOOD"}, task_id


def test_errors_repeats_and_needless_steps_are_bad():
    site = next(s for s in range(N_SITES) if quirks_of(s).guard == "yes")
    task_id = f"note_del.k{site}.1"
    find, delete, done = reference(task_id)
    bare = delete.removesuffix(" yes")
    labels = label_steps(task_id, [find, find, bare, "me.pin", "mail.send bob milk", delete, done])
    assert labels == ["GOOD", "BAD", "BAD", "BAD", "BAD", "GOOD", "BAD"]
    assert label_steps(task_id, ["done"]) == ["BAD"]


def test_another_way_to_a_needed_id_is_good():
    task_id = "note_retag.k0.1"
    _, *change, done = reference(task_id)
    env = PocketEnv(task_id, "i")
    old = env.world.tables.notes[change[-1].split()[1]][1]
    assert set(label_steps(task_id, [f"note.list {old}", *change, done])) == {"GOOD"}


def test_a_replay_reports_what_was_said_and_changed():
    result = replay("note_add.k0.1", [*reference("note_add.k0.1"), "note.add milk home"])
    assert result.sparse == result.dense == 1.0 and result.finished
    assert result.observations[-1] == "bye" and len(result.changes) == 1


def test_a_replay_keeps_to_a_budget_if_one_is_given():
    wasteful = ["me.pin", *reference("note_add.k0.1")]
    assert replay("note_add.k0.1", wasteful).sparse == 1.0
    assert replay("note_add.k0.1", wasteful, slack=1).sparse == 1.0
    assert replay("note_add.k0.1", wasteful, slack=0).sparse == 0.0


def test_only_errors_about_a_site_teach_something():
    assert lesson("ok") is None and lesson("err no such id n3") is None and lesson("err use note.add WORD TAG") is None
    assert lesson('err use bank.pay {"amount": AMOUNT, "name": NAME}') == "bank.pay amount name"
