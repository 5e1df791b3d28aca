"""What of verl, TransferQueue and vLLM our code rests on, read in both sources: nothing is imported, so this takes a
second.

Found are, in our packages: names imported from them; names of imported modules that are used (`tu.x`, `tq.x`); and for
each class of ours that is one of theirs, the methods it replaces or calls and the attributes it reads. Each has what
can be said of it: a parameter list without annotations, "attribute", "class"; and a digest of the body where ours
stands in its place, or rests on how it works.

`python tests/agentevolver/verl_contract.py` writes the table anew, after each change was looked at.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("verl_contract.json")
OURS = ("agentevolver", "advantage_processor", "context_manager", "experience_manager", "task_manager")
THEIRS = ("verl", "transfer_queue", "vllm")
# What no import shows: asked by name through Ray, a mixin or a decorator.
CALLED = (
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sync_metadata_from_transfer_queue",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_resource_pool_mgr",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.prepare_step",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.timing_raw",
    "verl.workers.rollout.llm_server:LLMServerClient._acquire_server",
    "verl.workers.rollout.llm_server:LLMServerClient._release_server",
    "verl.workers.rollout.llm_server:LLMServerClient.generate",
    "verl.workers.engine_workers:ActorRolloutRefWorker.set_loss_fn",
    "verl.workers.engine_workers:ActorRolloutRefWorker.update_actor",
    "transfer_queue.utils.zmq_utils:create_zmq_socket",
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver.__init__",
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender.__init__",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:build_app",
    "vllm.v1.worker.gpu_worker:Worker.reload_weights",
    "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu",
    "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_native",
)
# Whose work, not only whose signature, ours rests on: how rows become mini-batches, what a loss is divided by, and
# which groups are drawn and begun anew.
READ_CLOSELY = (
    "verl.trainer.ppo.core_algos:agg_loss",
    "verl.trainer.ppo.core_algos:compute_policy_loss_vanilla",
    "verl.trainer.ppo.utils:need_reference_policy",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._select_prompt_uids",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._balance_batch",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._reissue_inflight_prompts",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._submit_batch_to_rollout",
    "verl.utils.tensordict_utils:make_iterator",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch",
    "verl.workers.engine_workers:TrainingWorker.train_mini_batch",
    "verl.workers.utils.losses:ppo_loss",
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@functools.cache
def installed(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
    return Path(spec.submodule_search_locations[0])


@functools.cache
def tree_of(module: str) -> ast.Module | None:
    """The source of a module of theirs, None if there is none of that name."""
    package, *parts = module.split(".")
    base = installed(package).joinpath(*parts)
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else None


def is_package(module: str) -> bool:
    package, *parts = module.split(".")
    return installed(package).joinpath(*parts).is_dir()


@functools.cache
def imports_of(module: str) -> dict[str, tuple[str, str]]:
    """Where the names that a module of theirs imports come from: name -> (module, name there)."""
    tree = tree_of(module)
    found = {}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom):
            base = module.split(".") if is_package(module) else module.split(".")[:-1]
            prefix = ".".join(base[: len(base) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, [prefix, node.module]))
            found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return found


def declared(module: str, name: str) -> tuple[str, ast.AST] | None:
    """The module that declares a name and its declaration, imports followed within their packages; None if there is
    none."""
    tree = tree_of(module)
    for node in tree.body if tree else ():
        if isinstance(node, Definition) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in {getattr(t, "id", None) for t in targets(node)}:
            return module, node
    source, there = imports_of(module).get(name, ("", ""))
    return declared(source, there) if source.split(".")[0] in THEIRS else None


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


@functools.cache
def lineage(module: str, name: str) -> tuple[tuple[str, ast.ClassDef], ...]:
    """A class of theirs and its bases that are theirs too, nearest first."""
    found = declared(module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return ()
    home, node = found
    bases = [lineage(home, base.id) for base in node.bases if isinstance(base, ast.Name)]
    return ((home, node), *(entry for entries in bases for entry in entries))


def members(node: ast.ClassDef) -> dict[str, ast.AST | None]:
    """What a class declares: methods and class attributes by name, and None for an attribute that its methods
    assign."""
    own: dict[str, ast.AST | None] = {}
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and getattr(inner.value, "id", "") == "self"
        ):
            own[inner.attr] = None
    for inner in node.body:
        if isinstance(inner, Definition):
            own[inner.name] = inner
        elif isinstance(inner, ast.Assign | ast.AnnAssign):
            own |= {target.id: inner for target in targets(inner) if isinstance(target, ast.Name)}
    return own


def signature(node: ast.AST | None) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): ...")), mode="exec").body[0].args  # type: ignore[attr-defined]
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        return f"{kind}({ast.unparse(arguments)})"
    if isinstance(node, ast.ClassDef):
        init = members(node).get("__init__")
        if isinstance(init, ast.FunctionDef):
            return f"class {signature(init)}"
        fields = [
            part.target.id
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        ]
        return " ".join(["class", *fields])
    return "attribute"


def digest(node: ast.AST) -> str:
    """A digest of a function's code, its documentation left out; empty for one that does nothing."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    if all(isinstance(part, ast.Pass | ast.Raise) or ast.unparse(part) == "return" for part in body):
        return ""
    return " #" + hashlib.sha256("\n".join(map(ast.unparse, body)).encode()).hexdigest()[:12]


def entry(path: str, *, closely: bool = False) -> str | None:
    """What can be said of `module:name` or `module:Class.member`; None if there is none such any more."""
    module, _, name = path.partition(":")
    owner, _, member = name.partition(".")
    found = declared(module, owner)
    if found is None:
        return "module" if tree_of(f"{module}.{owner}") else None
    node: ast.AST | None = found[1]
    if member:
        own = next((members(cls) for _, cls in lineage(module, owner) if member in members(cls)), None)
        if own is None:
            return None
        node = own[member]
    return signature(node) + (
        digest(node) if closely and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
    )


# -- our side
# ----------------------------------------------------------------------------------------------------------------------


def our_modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(name in text for name in THEIRS):
                yield path, ast.parse(text)


def names_of(tree: ast.Module) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """What a module of ours imports of theirs: names (-> module, name there), and modules by the name they are used
    under."""
    names, modules = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in THEIRS:
            for alias in node.names:
                if tree_of(f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    names[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.Import):
            modules |= {a.asname: a.name for a in node.names if a.name.split(".")[0] in THEIRS and a.asname}
    for node in tree.body:  # `_Worker: Any = TheirWorker.__ray_metadata__.modified_class`
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and "modified_class" in ast.unparse(node.value)
        ):
            names |= {
                t.id: names[ast.unparse(node.value).split(".")[0]] for t in targets(node) if isinstance(t, ast.Name)
            }
    return names, modules


def uses() -> dict[str, bool]:
    """Everything of theirs that our code names, and whether its body matters: `module:name` or
    `module:Class.member`."""
    found = dict.fromkeys(CALLED, False)
    sources = [(tree, *names_of(tree)) for _, tree in our_modules()]
    above = {  # classes of ours that others of ours may be made of, and theirs above them
        node.name: names[base.id]
        for tree, names, _ in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name) and base.id in names
    }
    for tree, names, modules in sources:
        found |= {f"{module}:{name}": False for module, name in names.values()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found[f"{modules[node.value.id]}:{node.attr}"] = False
            elif isinstance(node, ast.ClassDef):
                for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
                    theirs = names.get(base) or above.get(base)
                    for path, closely in members_used(node, *theirs) if theirs else ():
                        found[path] = found.get(path, False) or closely
    return found | dict.fromkeys(READ_CLOSELY, True)


def members_used(ours: ast.ClassDef, module: str, name: str) -> Iterator[tuple[str, bool]]:
    """What our class replaces, extends and reads of theirs, and whether our method stands in the place of theirs."""
    own = members(ours)
    read = {
        n.attr for n in ast.walk(ours) if isinstance(n, ast.Attribute) and ast.unparse(n.value) in ("self", "super()")
    }
    for home, theirs in lineage(module, name):
        for member in members(theirs):
            method = own.get(member)
            if member in own or member in read:
                extends = not isinstance(
                    method, ast.FunctionDef | ast.AsyncFunctionDef
                ) or f"super().{member}(" in ast.unparse(method)
                yield f"{home}:{theirs.name}.{member}", not extends


def current() -> dict[str, str | None]:
    """The table as the installed packages have it: None for what is gone."""
    return {path: entry(path, closely=closely) for path, closely in sorted(uses().items())}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
