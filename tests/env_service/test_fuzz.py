"""Whatever a body holds, a route answers with a documented status and a JSON body, and the service stays in order."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_step_numbers import MemoryLink, service_on

from env_service.http.app import ERROR_STATUSES
from env_service.http.routes import MANY, ROUTES, answer

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ACTIONS = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.sampled_from(["1", "2", "x", "", "!raise", "!garbage nan"])}
)
IDS = st.sampled_from(["a", "b", "c", "..", "a/b", "", "\u0000", "x" * 300])
FIELDS: dict[str, Any] = {
    "env_type": st.sampled_from(["counter", "default", "os", ""]) | JSON,
    "task_id": st.sampled_from(["t0", "t1", "nope"]) | JSON,
    "instance_id": IDS | JSON,
    "messages": ACTIONS | st.just({}) | st.lists(ACTIONS, max_size=2) | JSON,
    "params": st.just({}) | st.fixed_dictionaries({"split": st.sampled_from(["train", "nope"])}) | JSON,
    "step_index": st.integers(0, 3) | JSON,
    "requests": st.lists(
        st.fixed_dictionaries({"instance_id": IDS, "messages": ACTIONS, "task_id": st.just("t0")}), max_size=3
    )
    | JSON,
    "surprise": JSON,
}
BODIES = st.fixed_dictionaries({}, optional=FIELDS).map(orjson.dumps) | JSON.map(orjson.dumps) | st.binary(max_size=30)
CALLS = st.lists(
    st.tuples(st.sampled_from([*ROUTES, *MANY]), BODIES, st.none() | st.sampled_from(["k1", "k2"])), max_size=12
)


@pytest.mark.thorough
@settings(deadline=None, max_examples=200)
@given(CALLS)
def test_any_sequence_of_any_bodies_is_answered_as_documented(calls: list[tuple[str, bytes, str | None]]) -> None:
    async def run() -> None:
        service = service_on(MemoryLink())
        for path, body, key in calls:
            reply = await answer(service, path, body, key)
            parsed = orjson.loads(reply.body)
            if reply.status == 200:
                assert set(parsed) == {"success", "data"}
            else:
                assert reply.status in ERROR_STATUSES and parsed["success"] is False
                assert parsed["code"] != "internal", parsed
        for name in list(service.instances):
            assert await service.release(name)
        assert service._taken == {"counter": 0}

    asyncio.run(run())
