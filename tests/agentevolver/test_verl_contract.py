"""What our code rests on in verl, TransferQueue and vLLM is as it was when it was last looked at, so that an upgrade
says what moved."""

import ast
import json

import pytest

from tests.agentevolver import verl_contract
from tests.agentevolver.verl_contract import READ_CLOSELY, TABLE, current, entry

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


@pytest.mark.parametrize(
    "path",
    [
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._balance_batch",
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop",
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess",
        "verl.plugin.platform.platform_base:PlatformBase.communication_backend_name",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_module",
        "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc",
        "transfer_queue:kv_batch_put",
        "transfer_queue:async_kv_batch_put",
        "vllm.v1.worker.gpu_worker:Worker.reload_weights",
        *READ_CLOSELY,
    ],
)
def test_every_kind_of_use_is_found(found, path):
    assert found[path]


def test_what_we_stand_in_the_place_of_has_its_body_watched_and_what_we_extend_its_parameters(found):
    trainer = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
    assert "#" in found[f"{trainer}._update_actor"] and "#" in found[f"{trainer}._val_metrics_update"]
    assert found[f"{trainer}._compute_advantage"] == "(self, batch, metrics)"


@pytest.mark.thorough
def test_a_name_that_is_gone_and_a_change_are_seen(monkeypatch):
    base = "verl.trainer.ppo.v1.trainer_base"
    assert (
        entry(f"{base}:PPOTrainer._no_such_method") is None
        and entry(f"{base}:NoTrainer") is None
        and entry("verl.no:thing") is None
    )
    before = entry(f"{base}:PPOTrainer._update_actor", closely=True)
    source = ast.unparse(verl_contract.tree_of(base))
    changed = ast.parse(
        source.replace("def _update_actor(self, batch: KVBatchMeta", "def _update_actor(self, batch: object", 1)
    )
    renamed = ast.parse(
        source.replace(
            "def _update_actor(self, batch: KVBatchMeta, metrics", "def _update_actor(self, batch, numbers", 1
        )
    )
    bodied = ast.parse(
        source.replace("ppo_mini_batch_size = ppo_mini_batch_size * self.config", "ppo_mini_batch_size = self.config")
    )
    seen = []
    for tree in (changed, renamed, bodied):
        verl_contract.lineage.cache_clear()
        monkeypatch.setattr(verl_contract, "tree_of", lambda module, tree=tree: tree)
        seen.append(entry(f"{base}:PPOTrainer._update_actor", closely=True))
    verl_contract.lineage.cache_clear()
    assert seen[0] == before, "an annotation is no change"
    assert seen[1].split(" #")[0] != before.split(" #")[0] and seen[2] != before
