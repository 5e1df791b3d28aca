import json

import pytest

from agentevolver.trainer.checkpoints import KINDS, LAYOUT, check_ranks, shard
from agentevolver.utils.errors import TrainingFailed

ALL = tuple(KINDS)


def save(folder, ranks, fsdp=2, step=4):
    """The names that verl writes, without the tensors."""
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True, exist_ok=True)
    for kind in KINDS.values():
        for rank in range(ranks):
            shard(actor, kind, ranks, rank).touch()
    (actor / LAYOUT).write_text(json.dumps({"FSDP_version": fsdp, "world_size": ranks}))
    return actor


@pytest.mark.parametrize("ranks", [1, 4, 8, 16])
def test_any_number_of_ranks_goes_on_from_fsdp2(tmp_path, ranks):
    check_ranks(save(tmp_path, 8), ranks, ALL)


def test_fsdp1_goes_on_with_as_many_ranks_alone(tmp_path):
    actor = save(tmp_path, 8, fsdp=1)
    check_ranks(actor, 8, ALL)
    with pytest.raises(TrainingFailed, match=r"8 ranks of FSDP1, which cannot resume on 4: give the run 8 GPUs"):
        check_ranks(actor, 4, ALL)


def test_a_missing_file_is_named_where_every_rank_reads_all(tmp_path):
    actor = save(tmp_path, 2)
    shard(actor, "optim", 2, 1).unlink()
    check_ranks(actor, 2, ALL)  # rank 1 may have it on another node
    check_ranks(actor, 1, ("model",))
    with pytest.raises(TrainingFailed, match=r"optim_world_size_2_rank_1\.pt is missing \(1 of 6 files of 2 ranks\)"):
        check_ranks(actor, 1, ALL)


def test_the_newest_of_two_layouts_counts(tmp_path):
    """A step that another number of ranks repeats: the old files stay beside the new ones."""
    save(tmp_path, 2)
    actor = save(tmp_path, 1)
    shard(actor, "model", 2, 1).unlink()
    check_ranks(actor, 2, ALL)


def test_a_layout_that_cannot_be_read_is_named(tmp_path):
    actor = save(tmp_path, 2)
    (actor / LAYOUT).write_text("{")
    with pytest.raises(TrainingFailed, match=r"fsdp_config\.json cannot be read .* trainer\.resume_from_path"):
        check_ranks(actor, 2, ALL)
