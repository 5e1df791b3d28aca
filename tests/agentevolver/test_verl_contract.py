"""What our code rests on in verl, TransferQueue and vLLM is as it was when it was last looked at, so that an upgrade
says what moved."""

import ast
import json

import pytest

from tests.agentevolver import verl_contract
from tests.agentevolver.verl_contract import TABLE, current, entry

HOW = "look at each, then write the table anew: python tests/agentevolver/verl_contract.py"


@pytest.fixture(scope="module")
def found():
    return current()


@pytest.mark.thorough
def test_nothing_that_we_rest_on_has_moved(found):
    recorded = json.loads(TABLE.read_text(encoding="utf-8"))
    gone = [path for path, what in found.items() if what is None]
    assert not gone, f"no longer there: {', '.join(gone)}"
    unlisted = sorted(set(found) - set(recorded))
    assert not unlisted, f"used and not in the table: {', '.join(unlisted)}; {HOW}"
    unused = sorted(set(recorded) - set(found))
    assert not unused, f"in the table and no longer used: {', '.join(unused)}; {HOW}"
    moved = [f"{path}\n  was {recorded[path]}\n  is  {found[path]}" for path in found if found[path] != recorded[path]]
    assert not moved, "\n".join([f"changed; {HOW}", *moved])


@pytest.mark.thorough
def test_a_name_that_is_gone_and_a_change_are_seen(monkeypatch):
    base = "verl.trainer.ppo.v1.trainer_base"
    gone = (f"{base}:PPOTrainer._no_such_method", f"{base}:NoTrainer", "verl.no:thing")
    assert [entry(path) for path in gone] == [None] * 3
    before, source = entry(f"{base}:PPOTrainer._update_actor", closely=True), ast.unparse(verl_contract.tree_of(base))
    for old, new in (
        ("def _update_actor(self, batch: KVBatchMeta, metrics", "def _update_actor(self, batch, numbers"),
        ("ppo_mini_batch_size = ppo_mini_batch_size * self.config", "ppo_mini_batch_size = self.config"),
    ):
        assert old in source
        verl_contract.lineage.cache_clear()
        tree = ast.parse(source.replace(old, new))
        monkeypatch.setattr(verl_contract, "tree_of", lambda _, tree=tree: tree)
        assert entry(f"{base}:PPOTrainer._update_actor", closely=True) != before
    verl_contract.lineage.cache_clear()
