"""The shared data types: row keys, and the schema of a record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.types import SCHEMA, RowKey, Trajectory
from tests.trajectories import trajectory

GROUPS = st.text("abc_-0123456789", min_size=1)
NUMBERS = st.integers(0, 10**6)


@given(GROUPS, NUMBERS, NUMBERS)
def test_a_row_key_is_read_as_it_was_written_whatever_its_group_is_called(group: str, rollout: int, index: int) -> None:
    key = RowKey(group, rollout, index)
    assert RowKey.of(str(key)) == key and str(key) == f"{key.trajectory_id}_{index}"


@given(st.lists(st.tuples(GROUPS, NUMBERS, NUMBERS)))
def test_row_keys_are_ordered_by_group_rollout_and_row_as_numbers(keys: list[tuple[str, int, int]]) -> None:
    assert sorted(RowKey(*key) for key in keys) == [RowKey(*key) for key in sorted(keys)]


def test_a_record_says_its_schema_and_one_of_a_newer_release_is_refused_in_one_line():
    record = trajectory(guidance={"injected": "tip", "experience_ids": ["a"]}, guidance_wanted=True).to_dict()
    assert record["schema"] == SCHEMA and Trajectory.from_dict(record).to_dict() == record
    with pytest.raises(ValueError, match=rf"schema {SCHEMA + 1}, this release reads up to {SCHEMA}"):
        Trajectory.from_dict({**record, "schema": SCHEMA + 1})
    with pytest.raises(ValueError, match="not a trajectory's record"):
        Trajectory.from_dict({**record, "schema": "one"})
    earlier = {name: value for name, value in record.items() if name not in ("schema", "guidance_wanted")}
    assert Trajectory.from_dict(earlier).guidance.guided
