"""Import paths of earlier releases give the same modules."""

import importlib
import subprocess
import sys

import pytest

from agentevolver.utils.moved import MOVED


@pytest.mark.parametrize(
    ("old", "new"), [*MOVED.items(), ("agentevolver.tools.formats", "agentevolver.rollout.tools.formats")]
)
def test_an_old_path_is_the_new_module(old: str, new: str) -> None:
    module = importlib.import_module(new)
    spec = module.__spec__
    assert importlib.import_module(old) is module and module.__spec__ is spec and module.__name__ == new


def test_in_a_fresh_process_the_old_name_alone_works_and_what_it_gives_pickles() -> None:
    code = (
        "import pickle; from agentevolver.tools.schema import ToolSpec; "
        "import agentevolver.rollout.tools.schema as new; "
        "assert ToolSpec is new.ToolSpec; print(pickle.loads(pickle.dumps(ToolSpec)).__module__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "agentevolver.rollout.tools.schema"


def test_an_unknown_name_is_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("agentevolver.tools.no_such")
