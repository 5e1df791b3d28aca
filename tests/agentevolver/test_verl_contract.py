"""What our code rests on in verl, TransferQueue and vLLM is as it was when it was last looked at, so that an upgrade
says what moved."""

import json

import pytest

from tests.agentevolver.verl_contract import TABLE, current

HOW = "look at each, then write the table anew: python tests/agentevolver/verl_contract.py"


@pytest.mark.thorough
def test_nothing_that_we_rest_on_has_moved():
    found = current()
    recorded = json.loads(TABLE.read_text(encoding="utf-8"))
    gone = [path for path, what in found.items() if what is None]
    assert not gone, f"no longer there: {', '.join(gone)}"
    moved = [f"{path}\n  was {recorded[path]}\n  is  {found[path]}" for path in found if found[path] != recorded[path]]
    assert not moved, "\n".join([f"changed; {HOW}", *moved])
