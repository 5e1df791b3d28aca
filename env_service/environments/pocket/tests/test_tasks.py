"""Ids, splits and determinism."""

import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.quirks import HARD_SITES, N_SITES, TEST_SITES, TRAIN_SITES, quirks_of
from env_service.environments.pocket.tasks import SPLITS, make_task

FINGERPRINT = """
import hashlib
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tasks import SPLITS, make_task
h = hashlib.sha256()
for split in SPLITS:
    for task_id in PocketEnv.get_query_list(split)[::7]:
        h.update(repr(make_task(task_id)).encode())
print(h.hexdigest())
"""


def test_splits_have_their_sizes_and_share_no_id():
    lists = {split: PocketEnv.get_query_list(split) for split in SPLITS}
    assert {split: len(ids) for split, ids in lists.items()} == {"train": 2400, "dev": 144, "test": 144, "hard": 144}
    everything = [task_id for ids in lists.values() for task_id in ids]
    assert len(set(everything)) == len(everything)


def test_every_prefix_is_stratified_over_levels_and_families():
    ids = PocketEnv.get_query_list("dev")
    assert {FAMILIES[i.split(".")[0]].level for i in ids[:4]} == {1, 2, 3, 4}
    assert Counter(i.split(".")[0] for i in ids) == dict.fromkeys(FAMILIES, 6)
    assert len(FAMILIES) == 24


def test_levels_narrow_the_list():
    ids = PocketEnv.get_query_list("test", {"levels": [3, 4]})
    assert len(ids) == 72
    assert {make_task(i).level for i in ids} == {3, 4}


@pytest.mark.parametrize(
    ("split", "params", "word"),
    [
        ("validation", {}, "dev"),
        ("train", {"n": 0}, "n=0"),
        ("dev", {"n": 10**6}, "n=1000000"),
        ("dev", {"levels": [5]}, "levels"),
        ("dev", {"levels": []}, "levels"),
        ("dev", {"level": [1]}, "level"),
        ("dev", {"n": "3"}, "n='3'"),
    ],
)
def test_a_wrong_list_request_is_refused_by_name(split, params, word):
    with pytest.raises(ValueError, match=word):
        PocketEnv.get_query_list(split, params)


@pytest.mark.parametrize(
    "task_id",
    ["", "note_del", "note_del.k3", "note_del.3.1", "note_del.k32.1", "nope.k1.1", "note_del.k01.1", "pay.k1.-1"],
)
def test_a_wrong_id_is_refused(task_id):
    with pytest.raises(ValueError, match=r"task id|site"):
        PocketEnv(task_id, "i")


def test_held_out_sites_and_wordings_stay_out_of_train():
    sites = {split: {make_task(i).site for i in PocketEnv.get_query_list(split)} for split in SPLITS}
    assert sites == {
        "train": set(TRAIN_SITES),
        "dev": set(TRAIN_SITES),
        "test": set(TEST_SITES),
        "hard": set(HARD_SITES),
    }
    held_out = {f.name: f.wordings[2].split("{")[0] for f in FAMILIES.values()}
    for task in map(make_task, PocketEnv.get_query_list("hard")):
        assert task.query.startswith(held_out[task.family])
    worded = {(t.family, t.query) for t in map(make_task, PocketEnv.get_query_list("train"))}
    assert not worded & {(t.family, t.query) for t in map(make_task, PocketEnv.get_query_list("hard"))}


def test_sites_are_distinct_combinations_with_every_quirk_balanced_in_every_split():
    assert len({quirks_of(site) for site in range(N_SITES)}) == N_SITES
    for sites in (TRAIN_SITES, TEST_SITES, HARD_SITES):
        for name in ("guard", "pay", "login", "plan", "look"):
            assert set(Counter(getattr(quirks_of(s), name) for s in sites).values()) == {len(sites) // 2}


def test_tasks_are_the_same_in_another_process_with_another_hash_seed():
    def fingerprint(hash_seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", FINGERPRINT], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        return run.stdout.strip()

    here = hashlib.sha256()
    for split in SPLITS:
        for task_id in PocketEnv.get_query_list(split)[::7]:
            here.update(repr(make_task(task_id)).encode())
    assert fingerprint("1") == fingerprint("2") == here.hexdigest()
