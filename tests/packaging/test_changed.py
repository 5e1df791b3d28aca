"""Which folders of environments or recipes a change concerns."""

from __future__ import annotations

import pytest

from tests.changed import ROOT, Kind

PLACE = ROOT / "env_service" / "environments"
IN = f"{PLACE.relative_to(ROOT)}/"
KIND = Kind(PLACE, {"sky": set(), "rain": {"sky"}, "flood": {"rain"}, "sand": set()}, ("env_service/",))


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ([], set()),
        (["docs/env_service.md", "agentevolver/view/app.py"], set()),
        ([f"{IN}sky/env.py"], {"sky", "rain", "flood"}),
        ([f"{IN}flood/tests/test_env.py", f"{IN}gone/env.py"], {"flood"}),
        ([f"{IN}sky/README.md", "env_service/base.py"], set(KIND.imports)),
        (None, set(KIND.imports)),
    ],
)
def test_a_change_concerns_the_folder_and_those_that_import_it(files: list[str] | None, folders: set[str]) -> None:
    assert KIND.concerned(files) == folders
