"""The store where processes die, compete, and find no room: what was acknowledged is there, what was not has left
nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from experience_fakes import SMALL
from store_children import BATCH, TURNS, batch

from experience_manager.pool import Pool
from experience_manager.store import Store

pytestmark = pytest.mark.service
SCRIPT = Path(__file__).parent / "store_children.py"


def child(mode, path, number):
    environment = {**os.environ, "PYTHONPATH": f"{SCRIPT.parents[2]}{os.pathsep}{SCRIPT.parent}"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), mode, str(path), str(number)], stdout=subprocess.PIPE, text=True, env=environment
    )


def facts(process, timeout=120):
    """Return what a child says until it ends of itself."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def batches(store):
    return Counter(e.id.rsplit("-", 1)[0] for e in store.records("default"))


@pytest.mark.chaos
def test_a_kill_in_the_middle_of_inserting_loses_nothing_that_was_acknowledged_and_leaves_no_half(tmp_path):
    path, acknowledged, tried = tmp_path / "s.sqlite", set(), set()
    draw = random.Random(0)
    for number in range(6):
        process = child("insert_for_ever", path, number)
        lines = []
        reader = threading.Thread(target=lambda process=process, lines=lines: lines.extend(process.stdout))
        assert "trying" in process.stdout.readline()
        reader.start()
        # The first is killed at whatever it does first, each one later has inserted some batches by then.
        deadline = time.monotonic() + 60
        while sum('"done"' in line for line in list(lines)) < 2 * number:
            assert time.monotonic() < deadline, lines
            time.sleep(0.01)
        time.sleep(draw.uniform(0.05, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
        process.stdout.close()
        said = [json.loads(line) for line in lines if line.endswith("\n")]
        acknowledged |= {fact["done"] for fact in said if "done" in fact}
        tried |= {fact["trying"] for fact in said if "trying" in fact} | {f"{number}.0"}
        with Store(path) as store:
            store.check()
            there = batches(store)
            assert set(there.values()) <= {BATCH}
            assert acknowledged <= set(there) <= tried
            assert len(Pool(store, SMALL).search("batch number", 100_000)) == BATCH * len(there)
    assert len(acknowledged) > 6
    with Store(path) as store:
        Pool(store, SMALL).put(batch("afterwards"))
        assert batches(store)["afterwards"] == BATCH


def test_eight_processes_that_write_and_read_at_once_lose_nothing_and_see_no_half(tmp_path):
    path = tmp_path / "s.sqlite"
    processes = [child("write_and_read", path, number) for number in range(8)]
    said = [fact for process in processes for fact in facts(process, timeout=240)]
    assert len(said) == 8 * TURNS
    assert all(fact["torn"] == {} and fact["own"] for fact in said)
    with Store(path) as store:
        store.check()
        shared = [e for e in store.records("default") if e.when_to_use == "when all say the same"]
        assert (
            len(shared) == 1
            and shared[0].support == shared[0].uses == 8 * TURNS
            and shared[0].successes == 8 * TURNS // 2
        )
        there = batches(store)
        del there[shared[0].id]
        assert there == {f"{number}.{turn}": BATCH for number in range(8) for turn in range(TURNS)}


def test_where_there_is_no_room_the_store_says_so_keeps_what_it_had_and_goes_on_when_there_is(tmp_path):
    path = tmp_path / "s.sqlite"
    said = facts(child("insert_until_full", path, 200_000))
    done = [fact["done"] for fact in said if "done" in fact]
    problem = next(fact["full"] for fact in said if "full" in fact)
    assert str(path) in problem and "cannot be written" in problem and "check free space" in problem
    assert next(fact["found"] for fact in said if "found" in fact) == BATCH * (len(done) - 1)
    assert len(done) > 1 and done[-1] == "after"
    with Store(path) as store:
        store.check()
        assert batches(store) == dict.fromkeys(done, BATCH)
