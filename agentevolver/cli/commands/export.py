"""`agentevolver export`: writes a policy as a Hugging Face folder with a model card, and uploads it to the hub."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.cli.commands.verbs import PROG, VerbParser, carried_out
from agentevolver.utils.errors import UsageError
from agentevolver.utils.secrets import read_dotenv

if TYPE_CHECKING:
    from agentevolver.evaluation.export.source import Source

DTYPES = ("float32", "bfloat16", "float16")


def parser() -> VerbParser:
    made = VerbParser(
        "export", "Writes the weights of a checkpoint as a Hugging Face folder with tokenizer and model card."
    )
    add = made.add_argument
    add(
        "what",
        metavar="RUN|CHECKPOINT",
        help="an experiment (its newest whole checkpoint), global_step_N, or a folder of weights",
    )
    add("--to", type=Path, required=True, metavar="DIR", help="the folder, which is made")
    add("--step", type=int, metavar="N", help="of a run, the checkpoint of this step")
    add("--dtype", choices=DTYPES, help="of the weights (default: as they were stored)")
    add(
        "--adapters",
        choices=("merge", "keep"),
        default="merge",
        help="LoRA adapters are merged into the weights, or written alone (default: %(default)s)",
    )
    add("--push", metavar="OWNER/NAME", help="also upload it to the hub; needs HF_TOKEN")
    add("--public", action="store_true", help="with --push: make a new repository public")
    return made


def main(arguments: Sequence[str], root: Path) -> int:
    return carried_out("export", lambda: _export(parser().read(arguments), list(arguments), root))


def _export(options: argparse.Namespace, arguments: list[str], root: Path) -> int:
    from agentevolver.evaluation.export.push import check_push, push

    read_dotenv(root)
    if options.public and options.push is None:
        raise UsageError("--public makes a pushed model public: give --push too")
    target: Path = options.to
    here = target.resolve() == Path.cwd().resolve()
    if here or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise UsageError(f"--to {target} exists already: give a new folder")
    token = check_push(options.push) if options.push is not None else ""
    # Imports torch, which takes seconds, so arguments are checked before.
    from agentevolver.evaluation.export.source import find_source

    source = find_source(options.what, options.step)
    written = export(
        source, target, dtype=options.dtype, adapters=options.adapters, command=[PROG, "export", *arguments]
    )
    print(f"{source.name}: {written / 1e6:.1f} MB in {target}")
    print(f"  card:  {target / 'README.md'}")
    print(f"  load:  AutoModelForCausalLM.from_pretrained({str(target)!r})")
    if options.push is not None:
        print(f"  pushed to {push(target, options.push, token, public=options.public)}")
    return 0


def export(source: Source, target: Path, *, dtype: str | None, adapters: str, command: list[str]) -> int:
    """Write a policy's folder completely or not at all. Return its size in bytes. Raises LaunchError."""
    from omegaconf import OmegaConf

    from agentevolver.evaluation.export.card import CONFIG, base_model, model_card, read_config
    from agentevolver.evaluation.export.merge import write_folder
    from agentevolver.utils.files import sync_tree
    from agentevolver.utils.secrets import masked_tree

    config = read_config(source.experiment)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written beside the target, because a rename is atomic within one file system only.
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        write_folder(
            source, draft, dtype=dtype, adapters="keep" if adapters == "keep" else "merge", base=base_model(config)
        )
        (draft / "README.md").write_text(
            model_card(source, config, command, adapters=adapters == "keep"), encoding="utf-8"
        )
        if config is not None:
            (draft / CONFIG).write_text(OmegaConf.to_yaml(OmegaConf.create(masked_tree(config))), encoding="utf-8")
        sync_tree(draft)
        # An empty folder may exist. `rmdir` fails if another process has written into it meanwhile.
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
