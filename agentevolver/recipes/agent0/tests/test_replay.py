"""Earlier tasks beside a round's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.recipes.agent0.pool import replayed


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0, 0.9), st.integers(0, 3))
def test_the_share_is_held_as_far_as_there_are_tasks(fresh, earlier, share, seed):
    own, old = [("new", i) for i in range(fresh)], [("old", i) for i in range(earlier)]
    found = replayed(own, old, share, seed)
    behind = found[fresh:]
    assert found[:fresh] == own
    assert len(set(behind)) == len(behind) and set(behind) <= set(old)
    assert len(behind) <= share / (1 - share) * fresh + 0.5
    assert len(behind) == earlier or len(behind) >= share / (1 - share) * fresh - 0.5
    assert found == replayed(own, old, share, seed)


def test_a_fifth_of_forty_and_ten():
    assert len(replayed(range(40), range(100, 200), 0.2, 0)) == 50
    assert replayed(range(40), range(100, 200), 0.2, 0) != replayed(range(40), range(100, 200), 0.2, 1)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(ValueError, match="replay"):
        replayed([1], [2], share, 0)
