"""Every view of the page at two widths, light and dark: it fits, and axe reports nothing. Pictures of all of them are
kept where VIEW_PICTURES names a folder."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.agentevolver.view.axe import axe_script, violations
from tests.agentevolver.view.browser import Page, browser, find_browser, serving, show
from tests.agentevolver.view.runs import make_run
from tests.recipe_runs import make_rounds, make_self_play

BROWSER = find_browser()
ONE = "pocket/demo"
VIEWS = (
    *("curves", "curves?best=1&metric=rollout/success", "compare", "compare?by=task&of=training"),
    *("trajectories", "trajectories?kind=validation", "trajectory/training/3/1", "trajectory/validation/0/2"),
    *("task?id=note_del.k0.3", f"pair?a=training/3/0@{ONE}&b=training/3/2@{ONE}", "tasks", "rounds", "experience"),
    *("cost", "run", "self_play", "nothing"),
)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.chaos,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium-headless-shell"),
]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    run = make_self_play(make_rounds(make_run(tmp_path / "pocket" / "demo")))
    with serving(run, make_run(tmp_path / "pocket" / "other", steps=5)) as address:
        yield address


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    assert BROWSER is not None
    async with browser(BROWSER) as page:
        yield page


@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_view_fits_and_axe_reports_nothing(
    width: int, dark: bool, page: Page, address: str, cache: pytest.Cache
) -> None:
    script, pictures = axe_script(cache.mkdir("axe")), os.environ.get("VIEW_PICTURES")
    await page.open(address, width=width, dark=dark)
    await page.until("document.querySelectorAll('.chart svg').length > 2")
    found = {}
    for number, view in enumerate(VIEWS):
        await show(page, view)
        await page.until("!document.querySelector('.state')?.textContent.startsWith('Loading')")
        reported = await violations(page, script)
        if (shown := await page.run("document.documentElement.scrollWidth")) > width:
            reported.append(f"{shown} pixels wide")
        if reported:
            found[view] = reported
        if pictures:
            name = view.partition("?")[0].partition("/")[0]
            await page.picture(
                Path(pictures) / f"{width}_{'dark' if dark else 'light'}_{number}_{name}.png", whole=True
            )
    assert found == {} and page.problems == []
