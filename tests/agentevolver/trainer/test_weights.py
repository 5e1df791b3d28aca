import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.trainer.job.main import check_weights
from agentevolver.trainer.weights import Weights, check_architecture, weights_at
from agentevolver.utils.errors import ConfigError
from tests.tiny_model import tiny_model_path

TINY = tiny_model_path()
MODEL = {"path": str(TINY)}
OWN = f"actor_rollout_ref.model.path={TINY}"
BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"


def of_hugging_face(folder, **changes):
    folder.mkdir(parents=True)
    config = json.loads((TINY / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def checkpoint(folder, ranks=1, whole=True):
    actor = folder / "actor"
    of_hugging_face(actor / "huggingface")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    if whole:
        (actor / f"model_world_size_{ranks}_rank_0.pt").write_bytes(b"")
    return folder


def test_a_hugging_face_folder(tmp_path):
    folder = of_hugging_face(tmp_path / "model")
    found = weights_at(folder)
    assert found == Weights("huggingface", str(folder)) and Weights(**found.to_dict()) == found
    check_architecture(found, MODEL)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("named", ["", "actor"])
def test_of_a_checkpoint_the_ranks_files_are_read(tmp_path, named, ranks):
    folder = checkpoint(tmp_path / "global_step_3", ranks)
    found = weights_at(folder / named)
    assert found == Weights("shards", str(folder / "actor"))
    check_architecture(found, MODEL)


@pytest.mark.parametrize("named", ["", "actor", "actor/huggingface"])
def test_of_a_checkpoint_without_them_what_was_exported(tmp_path, named):
    folder = checkpoint(tmp_path / "global_step_3", whole=False)
    assert weights_at(folder / named) == Weights("huggingface", str(folder / "actor" / "huggingface"))


def test_what_is_no_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=f"trainer.weights = {path} holds no weights"):
            weights_at(path)


def test_weights_of_another_model_are_refused_by_what_differs(tmp_path):
    width = json.loads((TINY / "config.json").read_text())["intermediate_size"]
    other = weights_at(of_hugging_face(tmp_path / "model", intermediate_size=2 * width))
    with pytest.raises(ConfigError, match=f"intermediate_size is {2 * width}, not {width}"):
        check_architecture(other, MODEL)


def test_adapters_are_refused(tmp_path):
    found = weights_at(of_hugging_face(tmp_path / "model"))
    with pytest.raises(ConfigError, match="cannot be combined with LoRA"):
        check_architecture(found, MODEL | {"lora_rank": 8})


@pytest.mark.thorough
def test_a_run_with_weights_that_are_none_is_refused_before_anything_is_started(tmp_path):
    resolved = load(BASIC, ["device=cpu", OWN, f"trainer.weights={tmp_path}"])
    with pytest.raises(ConfigError, match="holds no weights"):
        check_weights(resolved.config, resolved.settings)
    shutil.copytree(TINY, tmp_path / "model")
    resolved = load(BASIC, ["device=cpu", OWN, f"trainer.weights={tmp_path / 'model'}"])
    check_weights(resolved.config, resolved.settings)
    assert OmegaConf.select(resolved.config, "actor_rollout_ref.model.path") == str(TINY)
