"""Names of verl, TransferQueue and vLLM that our code rests on, read in their source: nothing is imported, so this
takes a second.

The table holds names imported from them, methods that classes of ours replace or call, and attributes they read. Each
has what can be said of it: a parameter list without annotations, "attribute", "class"; and a digest of the body where
ours stands in its place, or rests on how it works.

`python tests/agentevolver/verl_contract.py` writes the table anew, after each change was looked at. A new name is
written into it first: `"module:Class.member": ""`, with " #" as its value where the body matters.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

TABLE = Path(__file__).with_name("verl_contract.json")
THEIRS = ("verl", "transfer_queue", "vllm")
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


def current() -> dict[str, str | None]:
    """The table's names as the installed packages have them: None for what is gone."""
    recorded = json.loads(TABLE.read_text(encoding="utf-8"))
    return {path: entry(path, closely=" #" in what) for path, what in recorded.items()}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
