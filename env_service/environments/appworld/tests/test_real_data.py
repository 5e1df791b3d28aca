"""Against AppWorld's own tasks. They cannot be shipped, so these tests skip unless `setup.sh --data` was run."""

from __future__ import annotations

import pytest

from env_service.environments.appworld.env import AppworldEnv
from env_service.environments.appworld.installation import Installation

pytestmark = pytest.mark.service


def test_the_splits_have_their_published_sizes(real_installation: Installation) -> None:
    sizes = {
        split: len(AppworldEnv.get_query_list(split)) for split in ("train", "dev", "test_normal", "test_challenge")
    }
    assert sizes == {"train": 105, "dev": 60, "test_normal": 168, "test_challenge": 417}


def test_a_real_task_opens_and_is_worth_nothing_untouched(real_installation: Installation) -> None:
    env = AppworldEnv(AppworldEnv.get_query_list("dev")[0], "real")
    try:
        assert env.get_init_state()["state"][-1]["content"]
        result = env.step({"role": "assistant", "content": "```python\napis.supervisor.complete_task()\n```"})
        assert result["is_terminated"]
        assert (env.evaluate(), env.evaluate(params={"sparse": False})) == (0.0, 0.0)
    finally:
        env.close()
