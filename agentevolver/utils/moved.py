"""Import paths of earlier releases, as aliases of the moved modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "agentevolver.embeddings": "agentevolver.llm.embeddings",
    "agentevolver.errors": "agentevolver.utils.errors",
    "agentevolver.flows": "agentevolver.rollout.flows",
    "agentevolver.gateway": "agentevolver.rollout.gateway",
    "agentevolver.message_logs": "agentevolver.llm.message_logs",
    "agentevolver.monitor": "agentevolver.trainer.monitor",
    "agentevolver.tools": "agentevolver.rollout.tools",
}


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _new_name(fullname) is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = _new_name(spec.name)
        assert name is not None
        module = importlib.import_module(name)
        # The import system puts the old name's spec into the module: `exec_module` takes it out again.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _new_name(name: str) -> str | None:
    old = next((old for old in MOVED if name == old or name.startswith(f"{old}.")), None)
    return None if old is None else MOVED[old] + name.removeprefix(old)


def install() -> None:
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
