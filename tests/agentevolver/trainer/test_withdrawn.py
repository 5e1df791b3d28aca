import pytest
import ray
from omegaconf import DictConfig

from agentevolver.config.checks import for_verl
from agentevolver.trainer.transport import worker
from tests.agentevolver.config.test_checks import basic

pytestmark = pytest.mark.service


@pytest.fixture
def cluster():
    runtime_env = {"worker_process_setup_hook": worker.HOOK}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env)
    yield
    ray.shutdown()


def test_a_withdrawn_row_is_masked_in_the_queue_and_every_later_put_tells_of_it(cluster):
    # Within the test, so that Ray's worker is sent it and need not find this file.
    def withdrawn(config: DictConfig):
        import torch
        import transfer_queue as tq
        from tensordict import TensorDict

        from agentevolver.trainer.batch import mask_rows, trained_on
        from agentevolver.utils import run_key

        def jagged(value):
            return torch.nested.as_nested_tensor([value * torch.ones(n) for n in lengths], layout=torch.jagged)

        run_key.create()
        tq.init(config)
        try:
            lengths, keys = (2, 3, 4), ["g_0_0", "g_1_0", "h_0_0"]
            fields = TensorDict({"response_mask": jagged(1), "loss_mask": jagged(1)}, batch_size=len(keys))
            fields["uid"] = ["g", "g", "h"]
            tags = [{"seq_len": n} for n in lengths]
            batch = tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
            mask_rows(batch, [1])
            here = trained_on(batch)
            later = TensorDict({"advantages": jagged(2)}, batch_size=len(keys))
            batch = tq.kv_batch_put(keys=keys, partition_id="train", fields=later)
            found = tq.kv_batch_get(keys=keys, partition_id="train")
            masks = {name: [row.tolist() for row in found[name].unbind()] for name in ("response_mask", "loss_mask")}
            return here, trained_on(batch), batch.tags, list(found["uid"]), masks
        finally:
            tq.close()

    config = for_verl(basic().config).transfer_queue
    here, later, tags, uids, masks = ray.get(ray.remote(num_cpus=0)(withdrawn).remote(config))
    assert here == later == [0, 2]
    assert tags == [{"seq_len": 2}, {"seq_len": 3, "is_padding": True}, {"seq_len": 4}]
    assert uids == ["g", "withdrawn-g_1_0", "h"]
    assert masks["response_mask"] == masks["loss_mask"] == [[1, 1], [0, 0, 0], [1, 1, 1, 1]]
