"""Seeds follow from names alone: not from the process, the order, or how often something else was drawn."""

import asyncio
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from agentevolver.utils import seeds

NAMES = st.lists(st.one_of(st.integers(0, 10**6), st.text(max_size=8)), max_size=4)


def test_a_seed_is_the_same_in_every_process_and_release():
    assert seeds.derived(1, "train", 3, "note.k3.7") == 6481559529089390217
    code = "from agentevolver.utils import seeds; print(seeds.derived(1, 'train', 3, 'note.k3.7'))"
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        assert (
            int(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
            == 6481559529089390217
        )


@given(NAMES, NAMES)
def test_other_names_have_other_seeds_however_they_are_cut(one, other):
    assert 0 <= seeds.derived(*one) < 2**63
    same = [(type(part), part) for part in one] == [(type(part), part) for part in other]
    assert (seeds.derived(*one) == seeds.derived(*other)) == same


def test_what_is_drawn_again_gets_another_seed_and_another_try_gets_the_first_ones_again():
    with seeds.drawing(7, "g", 0):
        first = [seeds.current().seed("policy") for _ in range(3)]
        with seeds.drawing_again():
            assert [seeds.current().seed("policy") for _ in range(3)] == first
        assert seeds.current().seed("policy") not in first
    assert len(set(first)) == 3 and seeds.current() is None


async def test_rollouts_on_one_event_loop_do_not_disturb_each_other():
    async def rollout(number):
        with seeds.drawing(7, "g", number):
            drawn = []
            for _ in range(4):
                await asyncio.sleep(0)
                drawn.append(await asyncio.create_task(asyncio.sleep(0, seeds.current().seed("policy"))))
            return drawn

    alone = [await rollout(number) for number in range(3)]
    assert await asyncio.gather(*(rollout(number) for number in (2, 0, 1))) == [alone[2], alone[0], alone[1]]


def test_a_part_that_is_shared_draws_the_same_for_whomever_it_is_done():
    drawn = []
    for rollout in range(2):
        with seeds.drawing(7, "g", rollout), seeds.drawing_for("labels", "key") as draws:
            drawn.append(draws.seed("attributor"))
    assert drawn[0] == drawn[1]
    with seeds.drawing_for("labels", "key") as draws:
        assert draws is None
