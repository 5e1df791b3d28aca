"""A model's folder: one form of its name, and each file that is missing or broken is named before anything starts."""

import json
import os
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from agentevolver.config.checks import load
from agentevolver.config.model import check_model
from agentevolver.config.model_files import broken_in, local
from agentevolver.utils.errors import UsageError
from tests.tiny_model import tiny_model_path

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"
WEIGHTS, INDEX = "model-00002-of-00002.safetensors", "model.safetensors.index.json"
FORMS = {
    "slash": "{home}/models/m/",
    "slashes": "{home}//models/./m//",
    "home": "~/models/m",
    "home_slash": "~/models/m/",
    "relative": "models/m",
    "dotted": "./models/m/",
    "above": "../{name}/models/m",
    "link": "{home}/link",
    "link_of_links": "{home}/second/",
    "into_a_link": "{home}/folder/m",
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    shutil.copytree(tiny_model_path(), tmp_path / "models" / "m")
    for name, target in (("link", "models/m"), ("second", "link"), ("folder", "models")):
        (tmp_path / name).symlink_to(target)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_path_is_one(form, home):
    assert local(FORMS[form].format(home=home, name=home.name)) == os.path.realpath(home / "models" / "m")


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["${oc.env:HOME}/models/m/", "~/folder/m/", "models/m"])
def test_the_configuration_has_the_one_form_of_every_model(form, home):
    keys = [f"actor_rollout_ref.model.{key}" for key in ("path", "tokenizer_path")] + ["trainer.weights"]
    config = load(None, ["device=cpu", "env_service.env_type=world", *(f"{key}={form}" for key in keys)]).config
    assert {OmegaConf.select(config, key) for key in keys} == {os.path.realpath(home / "models" / "m")}


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-7B", "~nobody/m", "", "models/n", "a" * 5000])
def test_a_name_that_is_no_path_stays(name, home):
    assert local(name) == name


@pytest.fixture
def folder(tmp_path):
    """A model in two shards."""
    made = shutil.copytree(tiny_model_path(), tmp_path / "m")
    tensors = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[part::2]) for part in (0, 1)]
    placed = {}
    for number, half in enumerate(halves, 1):
        save_file(half, made / f"model-0000{number}-of-00002.safetensors")
        placed |= dict.fromkeys(half, f"model-0000{number}-of-00002.safetensors")
    (made / INDEX).write_text(json.dumps({"weight_map": placed}))
    return made


def config_of(path):
    model = {"path": str(path), "tokenizer_path": None}
    return OmegaConf.create({"actor_rollout_ref": {"model": model}, "data": {"apply_chat_template_kwargs": {}}})


@pytest.mark.parametrize(
    ("file", "written"),
    [
        *((name, None) for name in ("config.json", WEIGHTS, "tokenizer.json", "chat_template.jinja")),
        *((name, POINTER) for name in ("config.json", WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json")),
        *((name, b"") for name in ("config.json", WEIGHTS, INDEX, "tokenizer.json", "chat_template.jinja")),
        *((name, 0.5) for name in ("config.json", WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json")),
        *((WEIGHTS, kept) for kept in (0.001, 0.999)),
        (WEIGHTS, b"\xff" * 400),
        (WEIGHTS, b"\2\0\0\0\0\0\0\0[]"),
        (INDEX, b"{}"),
        (INDEX, b"[]"),
        ("config.json", '{"model_type": "qwen2"}'.encode("utf-16")),
    ],
)
def test_a_file_that_is_missing_or_broken_is_named(file, written, folder):
    assert broken_in(folder, folder, templated=True) is None
    whole = (folder / file).read_bytes()
    (folder / file).unlink()
    if written is not None:
        (folder / file).write_bytes(whole[: int(len(whole) * written)] if isinstance(written, float) else written)
    with pytest.raises(UsageError, match=r"actor_rollout_ref\.model\.path=") as caught:
        check_model(config_of(folder))
    assert str(folder) in str(caught.value) and file in str(caught.value) and "\n" not in str(caught.value)


def test_weights_of_torch_and_other_tokenizers_are_taken(folder):
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\3\4 and no end")
    assert "pytorch_model.bin" in str(broken_in(folder, folder, templated=True))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\2 an old pickle")
    (folder / "chat_template.jinja").unlink()
    assert "chat_template.jinja" in str(broken_in(folder, folder, templated=True))
    assert broken_in(folder, folder, templated=False) is None
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    assert broken_in(folder, folder, templated=False) is None


@pytest.mark.parametrize("path", ["/no/such", "./none", "../none", "~/none", "a/b/c", "{file}"])
def test_what_is_no_folder_and_no_name_of_the_hub_is_refused(path, tmp_path: Path):
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(UsageError, match="does not exist as a folder"):
        check_model(config_of(path.format(file=tmp_path / "weights.gguf")))
