"""Every opening of BFCL fits into its example, in the tokens of the model that it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from context_manager.chat import ChatRenderer
from env_service.environments.bfcl import BfclEnv
from tests.real_tokenizers import build_real

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[4]
CONFIG = yaml.safe_load((ROOT / "examples" / "bfcl.yaml").read_text())
# Tokens that must be left for guidance, which is cut at 6,000 characters, and for a synthetic task's own wording.
FOR_GUIDANCE = 1_500


@pytest.fixture(scope="module")
def lengths() -> dict[tuple[str, bool], list[int]]:
    """The tokens of every opening, by split and whether it is one without a goal."""
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed (see env_service/environments/bfcl/README.md)")
    renderer = ChatRenderer(build_real("qwen2_5", "qwen"))
    measured: dict[str, int] = {}
    found: dict[tuple[str, bool], list[int]] = {}
    for split, key in (("train", "train_filter"), ("val", "val_filter")):
        for is_open in (False, True):
            for task in BfclEnv.get_query_list(split, CONFIG["data"][key]):
                opening = BfclEnv(task, "measured", {"is_open_query": is_open}).get_init_state()["state"]
                text = str(opening)
                if text not in measured:
                    measured[text] = len(renderer.opening(opening))
                found.setdefault((split, is_open), []).append(measured[text])
    return found


def test_every_opening_fits_and_leaves_room_for_guidance(lengths: dict[tuple[str, bool], list[int]]) -> None:
    assert {len(kind) for kind in lengths.values()} == {400}
    assert max(map(max, lengths.values())) + FOR_GUIDANCE <= CONFIG["data"]["max_prompt_length"]
