"""Who reads a key: the places in our source that access a field of a settings model, found by following types.

The source is parsed, never run. Every function is annotated (mypy sees to that), so that the class of most expressions follows from
annotations, imports, assignments and constructors alone; `Readers` follows these, and nothing by name only: two models may have a
field of the same name. A field that is read inside a model, by one of its properties or methods, is read where that one is used; one
that only a validator looks at is read by nobody.
"""

from __future__ import annotations

import ast
import inspect
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("agentevolver", "task_manager", "experience_manager", "advantage_processor", "context_manager", "env_service")
# Fills and checks the models: what it looks at to refuse a combination is not read by that.
CHECKS = "agentevolver.config.checks"
_WRAPPERS = frozenset({"Optional", "Annotated", "ClassVar", "Final", "Awaitable", "Coroutine"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Names = ChainMap[str, "Type"]
_BINDING = (ast.AnnAssign, ast.Assign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension, ast.withitem)


@dataclass(frozen=True)
class Type:
    """An instance of a class of ours (`module.Class`), or a container of them."""

    name: str
    many: bool = False


@dataclass
class _Class:
    module: str
    node: ast.ClassDef
    bases: list[str]
    declared: dict[str, Type | None] = field(default_factory=dict)
    assigned: dict[str, Type] = field(default_factory=dict)
    methods: dict[str, _Function] = field(default_factory=dict)


@dataclass(frozen=True)
class _Site:
    """A place in the source: its module, and the class and function around it."""

    module: str
    cls: str | None
    function: str | None


@dataclass(frozen=True)
class _Parts:
    """The nodes that bind names, those that read something, and the functions and classes inside."""

    binding: list[ast.AST]
    reading: list[ast.AST]
    inner: list[ast.ClassDef | _Function]

    @classmethod
    def of(cls, node: ast.Module | ast.ClassDef | _Function) -> _Parts:
        """Sort the nodes of a body, in their order."""
        parts = cls([], [], [])
        waiting: list[ast.AST] = [*node.body, *(node.args.defaults if isinstance(node, _FUNCTIONS) else ())][::-1]
        while waiting:
            item = waiting.pop()
            if isinstance(item, (*_FUNCTIONS, ast.ClassDef)):
                parts.inner.append(item)
                waiting += item.decorator_list
                continue
            if isinstance(item, _BINDING):
                parts.binding.append(item)
            elif isinstance(item, ast.Attribute | ast.DictComp):
                parts.reading.append(item)
            waiting += list(ast.iter_child_nodes(item))[::-1]
        return parts


class Readers:
    """The readers of every field of the given models.

    Args:
        models: the models whose fields are looked for.
        root: the folder that holds the packages.
    """

    def __init__(self, models: Sequence[type[BaseModel]], root: Path = ROOT) -> None:
        self._root = root
        self._paths: dict[str, Path] = {}
        self._trees: dict[str, ast.Module] = {}
        self._imports: dict[str, dict[str, str]] = defaultdict(dict)
        self._classes: dict[str, _Class] = {}
        self._functions: dict[str, tuple[str, _Function]] = {}
        lineage = {cls for model in models for cls in model.__mro__ if issubclass(cls, BaseModel) and cls is not BaseModel}
        self._models = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in lineage}
        self._accesses: dict[tuple[str, str], set[_Site]] = defaultdict(set)
        self._copies: dict[str, str] = {}
        self._parts: dict[int, _Parts] = {}
        self._load()

    def of(self, model: type[BaseModel], name: str) -> tuple[str, ...]:
        """Return the files that read a field, relative to the root and sorted; none if nobody does."""
        owner = next(cls for cls in model.__mro__ if name in inspect.get_annotations(cls))
        sites = self._outer((f"{owner.__module__}.{owner.__qualname__}", name), set())
        return tuple(sorted({self._paths[site.module].relative_to(self._root).as_posix() for site in sites}))

    def _outer(self, member: tuple[str, str], seen: set[tuple[str, str]]) -> Iterator[_Site]:
        """Yield where a member is accessed, outside of the models: an access inside of one counts where that member of it is used."""
        for site in self._found[member]:
            if site.module == CHECKS and site.cls is None:
                continue
            if site.cls not in self._models and site.module != CHECKS:
                yield site
            elif site.cls and site.function and (inner := (site.cls, site.function)) not in seen:
                seen.add(inner)
                yield from self._outer(inner, seen)

    @cached_property
    def _found(self) -> dict[tuple[str, str], set[_Site]]:
        for _ in range(3):  # attributes that are set in one class are known to the others a round later
            self._accesses.clear()
            for module, tree in self._trees.items():
                _Walk(self, module).body(tree, ChainMap())
        for stand_in, original in [*self._copies.items(), *self._protocols()]:
            for (cls, name), sites in list(self._accesses.items()):
                if cls == stand_in:
                    self._accesses[original, name] |= sites
        return self._accesses

    def _protocols(self) -> Iterator[tuple[str, str]]:
        """Yield the protocols of ours with the classes that have all of their members."""
        protocols = {
            name: {*info.declared, *info.methods}
            for name, info in self._classes.items()
            if any(ast.unparse(base).startswith("Protocol") for base in info.node.bases)
        }
        for original in (*self._models, *(name for name, info in self._classes.items() if info.module == CHECKS)):
            members = {member for _, info in self.lineage(original) for member in (*info.declared, *info.methods)}
            for name, wanted in protocols.items():
                if wanted and wanted <= members:
                    yield name, original

    def parts(self, node: ast.Module | ast.ClassDef | _Function) -> _Parts:
        """Return what matters of a module, class or function, without what is inside another function or class."""
        if id(node) not in self._parts:
            self._parts[id(node)] = _Parts.of(node)
        return self._parts[id(node)]

    # -- the index ------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        for package in PACKAGES:
            for path in sorted((self._root / package).rglob("*.py")):
                parts = path.relative_to(self._root).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self._paths[module] = path
                self._trees[module] = ast.parse(path.read_text(encoding="utf-8"))
        for module, tree in self._trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    self._imports[module].update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
                elif isinstance(node, ast.Import):
                    self._imports[module].update({alias.asname: alias.name for alias in node.names if alias.asname})
            for statement in tree.body:
                if isinstance(statement, ast.ClassDef):
                    self._classes[f"{module}.{statement.name}"] = _Class(module, statement, [])
                elif isinstance(statement, _FUNCTIONS):
                    self._functions[f"{module}.{statement.name}"] = (module, statement)
        for info in self._classes.values():
            info.bases = [name for base in info.node.bases if (name := self.resolve(info.module, base)) in self._classes]
            for statement in info.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    info.declared[statement.target.id] = self.annotated(info.module, statement.annotation)
                elif isinstance(statement, _FUNCTIONS):
                    info.methods[statement.name] = statement

    def resolve(self, module: str, node: ast.expr) -> str:
        """Return the qualified name that an expression stands for in a module; "" if it is none of ours."""
        if isinstance(node, ast.Attribute):
            inner = self.resolve(module, node.value)
            return self._canonical(f"{inner}.{node.attr}") if inner else ""
        if not isinstance(node, ast.Name):
            return ""
        return self._canonical(self._imports[module].get(node.id, f"{module}.{node.id}"))

    def _canonical(self, name: str) -> str:
        for _ in range(8):  # through the packages that hand a name on
            module, _, leaf = name.rpartition(".")
            if name in self._classes or name in self._functions or leaf not in self._imports.get(module, {}):
                return name
            name = self._imports[module][leaf]
        return name

    def annotated(self, module: str, node: ast.expr | None) -> Type | None:
        """Return what an annotation says."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            return self.annotated(module, node.left) or self.annotated(module, node.right)
        if isinstance(node, ast.Subscript):
            head = ast.unparse(node.value).rpartition(".")[2]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            found = next((kind for part in reversed(inner) if (kind := self.annotated(module, part))), None)
            return found if found is None or head in _WRAPPERS else (None if head in ("type", "Callable") else Type(found.name, True))
        if isinstance(node, ast.Name | ast.Attribute):
            name = self.resolve(module, node)
            return Type(name) if name in self._classes else None
        return None

    def lineage(self, name: str) -> Iterator[tuple[str, _Class]]:
        """Yield a class and its bases, nearest first."""
        info = self._classes.get(name)
        if info is not None:
            yield name, info
            for base in info.bases:
                yield from self.lineage(base)

    def attribute(self, name: str, attr: str) -> Type | None:
        """Return the type of an attribute, or of what a property or method returns."""
        for _, info in self.lineage(name):
            if attr in info.declared:
                return info.declared[attr]
            if attr in info.methods:
                return self.annotated(info.module, info.methods[attr].returns)
            if attr in info.assigned:
                return info.assigned[attr]
        return None

    def function(self, name: str) -> Type | None:
        """Return what a function of ours returns."""
        module, node = self._functions.get(name, ("", None))
        return self.annotated(module, node.returns) if node is not None else None

    def note_attribute(self, cls: str, attr: str, kind: Type) -> None:
        """Remember what is assigned to an attribute of `self`."""
        self._classes[cls].assigned.setdefault(attr, kind)

    def note_access(self, name: str, attr: str, site: _Site) -> None:
        """Remember that an attribute of a class is read at a place."""
        for owner, info in self.lineage(name):
            if attr in info.declared or attr in info.methods:
                self._accesses[owner, attr].add(site)
                return

    def note_copy(self, copy: str, original: str) -> None:
        """Remember that a class has its fields from those of the same name of another."""
        if copy != original:
            self._copies[copy] = original

    def is_class(self, name: str) -> bool:
        """Whether a name is a class of ours."""
        return name in self._classes

    def fields_of(self, name: str) -> list[str]:
        """Return the names of a model's fields."""
        return list(self._models[name].model_fields) if name in self._models else []


@dataclass
class _Walk:
    """Goes through one function, or a module's own statements, and those inside it."""

    readers: Readers
    module: str
    cls: str | None = None
    function: str | None = None

    def body(self, node: ast.Module | ast.ClassDef | _Function, known: _Names) -> None:
        """Follow what is bound until nothing new is known, then note what is read."""
        parts = self.readers.parts(node)
        for part in [*parts.binding, *parts.binding] if not isinstance(node, ast.ClassDef) else ():  # its names are attributes
            self._learn(part, known)
        for part in parts.reading:
            self._note(part, known)
        for inner in parts.inner:
            if isinstance(inner, ast.ClassDef):
                name = f"{self.module}.{inner.name}"
                _Walk(self.readers, self.module, name if self.readers.is_class(name) else self.cls, self.function).body(inner, known)
            else:
                function = inner.name if self.function is None else self.function
                _Walk(self.readers, self.module, self.cls, function).body(inner, known.new_child(self._parameters(inner)))

    def _parameters(self, node: _Function) -> dict[str, Type]:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        found = {item.arg: kind for item in arguments if (kind := self.readers.annotated(self.module, item.annotation))}
        if self.cls is not None and self.function is None and arguments and arguments[0].arg == "self":
            found["self"] = Type(self.cls)
        return found

    def _learn(self, node: ast.AST, known: _Names) -> None:
        if isinstance(node, ast.AnnAssign):
            self._bind(node.target, self.readers.annotated(self.module, node.annotation), known)
        elif isinstance(node, ast.Assign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for part, value in zip(target.elts, node.value.elts, strict=False):
                        self._bind(part, self.infer(value, known), known)
                else:
                    self._bind(target, self.infer(node.value, known), known)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            kind = self.infer(node.iter, known)
            self._bind(node.target, Type(kind.name) if kind is not None and kind.many else None, known)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind(node.optional_vars, self.infer(node.context_expr, known), known)

    def _bind(self, target: ast.expr, kind: Type | None, known: _Names) -> None:
        if kind is None:
            return
        if isinstance(target, ast.Name):
            known.maps[0].setdefault(target.id, kind)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self" and self.cls:
            self.readers.note_attribute(self.cls, target.attr, kind)

    def _note(self, node: ast.AST, known: _Names) -> None:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            kind = self.infer(node.value, known)
            if kind is None or kind.many:
                return
            site = _Site(self.module, self.cls, self.function)
            self.readers.note_access(kind.name, node.attr, site)
            if node.attr == "model_dump" and isinstance(node.value, ast.Name) and node.value.id == "self":
                for name in self.readers.fields_of(kind.name):
                    self.readers.note_access(kind.name, name, site)
        elif isinstance(node, ast.DictComp):
            self._note_copy(node, known)

    def _note_copy(self, node: ast.DictComp, known: _Names) -> None:
        """`{f.name: getattr(x, f.name) for f in fields(Copy)}`: what is read of Copy is read of x."""
        source, value = node.generators[0].iter, node.value
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "getattr"):
            return
        original = self.infer(value.args[0], known)
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "fields":
            copy = self.readers.resolve(self.module, source.args[0])
            if original is not None and self.readers.is_class(copy):
                self.readers.note_copy(copy, original.name)

    def infer(self, node: ast.expr, known: _Names) -> Type | None:
        """Return the class of an expression, if it is one of ours."""
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            kind = self.infer(node.value, known)
            return self.readers.attribute(kind.name, node.attr) if kind is not None and not kind.many else None
        if isinstance(node, ast.Await | ast.Starred | ast.NamedExpr):
            return self.infer(node.value, known)
        if isinstance(node, ast.IfExp):
            return self.infer(node.body, known) or self.infer(node.orelse, known)
        if isinstance(node, ast.BoolOp):
            return next((kind for value in node.values if (kind := self.infer(value, known))), None)
        if isinstance(node, ast.Subscript):
            kind = self.infer(node.value, known)
            return Type(kind.name) if kind is not None and kind.many else None
        return self._returned(node, known) if isinstance(node, ast.Call) else None

    def _returned(self, node: ast.Call, known: _Names) -> Type | None:
        name = self.readers.resolve(self.module, node.func)
        if self.readers.is_class(name):
            return Type(name)
        if isinstance(node.func, ast.Attribute):
            owner = self.readers.resolve(self.module, node.func.value)
            if self.readers.is_class(owner):  # a class method: a constructor, or what it says
                return self.readers.attribute(owner, node.func.attr) or Type(owner)
            if node.func.attr == "model_copy":
                return self.infer(node.func.value, known)
            return self.infer(node.func, known)
        return self.readers.function(name)
