import pytest

from agentevolver.trainer.monitor.log import (
    SUPERSEDED,
    RunLog,
    last_step,
    last_trained_step,
    supersede_metrics,
)
from agentevolver.utils.files import read_jsonl


class Backend:
    def log(self, data, step):
        pass


def test_a_broken_line_does_not_block_a_resume(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2,"lo\n[2]\n{"step":"x"}\n\n{"step":3}\n{"step":4}\n{"st')
    assert last_step(tmp_path) == 4
    assert supersede_metrics(tmp_path, 3) == 1
    assert path.read_bytes() == b'{"step":1}\n{"step":3}\n'
    assert (tmp_path / SUPERSEDED).read_bytes() == b'{"step":2,"lo\n[2]\n{"step":"x"}\n\n{"step":4}\n{"st\n', (
        "nothing is lost"
    )
    assert "5 lines" in caplog.text


LINES = [b'{"step":%d,"reward":0.5}\n' % step for step in range(4)]


@pytest.mark.parametrize("kept", [1, 9])
def test_wherever_the_file_is_torn_a_resume_goes_on_with_whole_records_of_the_steps_it_keeps(tmp_path, kept):
    content = b"".join(LINES)
    for cut in range(len(content) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "metrics.jsonl").write_bytes(content[:cut])
        complete = [step for step in range(4) if len(b"".join(LINES[: step + 1])) - 1 <= cut]
        assert supersede_metrics(folder, kept) == sum(step > kept for step in complete)
        RunLog(folder, Backend()).log({"reward": 1.0}, step=kept + 1)
        assert [r["step"] for r in read_jsonl(folder / "metrics.jsonl")] == [
            *(step for step in complete if step <= kept),
            kept + 1,
        ]


def test_what_an_evaluation_writes_is_no_trained_step(tmp_path):
    assert last_trained_step(tmp_path) == 0
    log = RunLog(tmp_path, Backend())
    log.log({"val-core/pocket/reward/mean@8": 0.5, "timing_s/testing": 9.0}, step=40)
    assert (last_step(tmp_path), last_trained_step(tmp_path)) == (40, 0)
    log.log({"rollout/reward/mean": 0.5, "training/global_step": 41}, step=41)
    log.log({"val-core/pocket/reward/mean@8": 0.5, "training/global_step": 42}, step=42)
    assert last_trained_step(tmp_path) == 42


def test_a_disk_that_is_really_full_ends_the_step_before_anything_is_said_to_be_there(tmp_path):
    """`/dev/full` takes nothing: a metrics file on such a disk raises, and verl's loggers are not told."""
    told = []

    class Backend:
        def log(self, data, step):
            told.append(step)

    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        RunLog(tmp_path, Backend()).log({"a": 1.0}, 1)
    assert told == []
