from agentevolver.config.training import RetentionSettings
from agentevolver.trainer.monitor.log import Retention
from agentevolver.trainer.records import Records
from agentevolver.utils.files import read_jsonl
from tests.trajectories import trajectory


def test_the_rollouts_of_a_step_are_those_of_its_batches_together(tmp_path):
    records = Records(tmp_path, Retention(tmp_path, RetentionSettings()))
    for step, names in ((1, "ab"), (2, "c")):
        for name in names:
            records.begin(step, [trajectory(group_id=name)])
            records.after_rollouts(step, [])
            records.write_samples([{"key": name}])
        assert [one.group_id for one in records.of_step] == list(names)
        for kind, key in (("trajectories", "group_id"), ("samples", "key")):
            assert [one[key] for one in read_jsonl(tmp_path / kind / f"step_{step}.jsonl")] == list(names)
