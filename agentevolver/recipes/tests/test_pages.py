"""Views of recipes in a real browser; a recipe that was removed has none."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentevolver.utils.files import write_jsonl
from agentevolver.utils.recipes import recipes
from tests.agentevolver.view.browser import Page, browser, find_browser, serving, show
from tests.agentevolver.view.runs import HOSTILE, make_run
from tests.recipe_runs import make_rounds, make_self_play, proposal_record

BROWSER = find_browser()
pytestmark = [pytest.mark.service, pytest.mark.skipif(BROWSER is None, reason="no Chromium, as in test_page.py")]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "pocket" / "demo")


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with serving(run) as address:
        yield address


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    assert BROWSER is not None
    async with browser(BROWSER) as page:
        yield page


def needs(recipe: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(recipe not in recipes(), reason=f"recipe {recipe} was removed")


@needs("agent0")
async def test_rounds_are_shown_where_a_run_has_them(page: Page, address: str, run: Path) -> None:
    tab = "document.querySelector('#nav a[href=\"#/rounds\"]')"
    await page.open(address)
    await page.until(f"{tab} && {tab}.hidden && !{tab}.offsetParent")
    assert "This run has no rounds." in await show(page, "rounds")
    make_rounds(run)
    await page.until(f"!{tab}.hidden && document.querySelectorAll('.card').length === 4")
    said = await page.text()
    for text in (
        "Proposer's reward",
        "Executor's success",
        "dev 50.0 % ± 5",
        "2 of 4",
        "50.0 % of 2",
        HOSTILE,
        "dropped: too_easy",
    ):
        assert text in said, text
    success = "document.querySelector('[aria-label=\"Executor\\'s success\"]')"
    assert await page.run(f"{success}.querySelectorAll('circle').length") == 2
    assert await page.run(f"{success}.querySelectorAll('line.error').length") == 2
    assert await page.run("document.images.length + document.querySelectorAll('main script').length") == 0
    await page.run("document.querySelector('[name=fate]').value = 'kept'")
    await page.run("document.querySelector('form').requestSubmit()")
    await page.until("document.querySelectorAll('.card').length === 2")
    assert page.problems == [] and await page.run("document.title") != "1"


@needs("self_play")
async def test_ratings_of_self_play_are_charts_and_a_table(page: Page, address: str, run: Path) -> None:
    make_self_play(run)
    await page.open(f"{address}#/self_play")
    await page.until("document.querySelector('[aria-label=\"Self-play ratings\"] svg')")
    rows = "[...document.querySelectorAll('[aria-label=\"opponents\"] tbody tr')].map((r) => r.innerText)"
    strongest, policy, start = await page.run(rows)
    assert strongest == f"step_2 {HOSTILE}\t1,071\t24" and policy == "the policy\t1,064\t\u2013"
    assert start == "start\t1,000\t24"
    said = await page.text()
    assert "Opponents after training step 3" in said and "Score against the opponent" in said
    assert page.problems == [] and await page.run("document.title") != "1"


@needs("agent0")
async def test_a_long_pool_is_shown_by_pages_in_any_window(page: Page, address: str, run: Path) -> None:
    make_rounds(run)
    wide = [proposal_record(i, question="x" * 3000, drop_reason="y" * 300, kept=False) for i in range(70)]
    write_jsonl(run / "round_1" / "pool.jsonl", wide)
    for width in (1280, 400):
        await page.open(f"{address}#/rounds?round=1", width=width)
        await page.until("document.querySelectorAll('.card').length === 50")
        assert await page.run("document.documentElement.scrollWidth") <= width
    await page.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Show more').click()")
    await page.until("document.querySelectorAll('.card').length === 70")
    (run / "coevolve.json").write_text('{"rounds": [')
    await page.until("document.body.innerText.includes('coevolve.json cannot be read')")
