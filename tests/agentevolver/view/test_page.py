"""The page in a real browser. Skipped where there is none: `apt-get install chromium-headless-shell`, or name one in
VIEW_BROWSER."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentevolver.utils.files import write_jsonl
from tests.agentevolver.view.browser import Page, browser, find_browser, serving, show
from tests.agentevolver.view.runs import (
    HOSTILE,
    make_records,
    make_run,
    write_metrics,
)

BROWSER = find_browser()
VIEWS = ("curves", "trajectories", "trajectory/training/3/1", "tasks", "experience", "cost", "run")
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium: apt-get install chromium-headless-shell, or name one in VIEW_BROWSER"
    ),
]


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


async def test_every_view_shows_the_run_and_asks_nobody_else(page: Page, address: str) -> None:
    await page.open(address)
    await page.until("document.querySelectorAll('.chart svg').length > 3")
    said = {view: await show(page, view) for view in VIEWS}
    for view, shown in (("curves", "pocket/demo"), ("trajectories", "did not happen"), ("tasks", "note/n3 is gone"),
                        ("experience", "75.0 %"), ("cost", "explorer"), ("run", "loading")):  # fmt: skip
        assert shown in said[view] and "sk-secret" not in said[view]
    await show(page, "trajectory/training/3/1")
    first, _ = await page.run("[...document.querySelectorAll('.sum')].map((sum) => sum.textContent)")
    assert [float(word.replace("\u2212", "-")) for word in first.split() if word[-1].isdigit()] == [0, -0.75, 1.25, 0.5]
    assert page.problems == [] and page.requests and all(url.startswith((address, "data:")) for url in page.requests)


async def test_what_a_model_wrote_stays_text(page: Page, address: str) -> None:
    await page.open(address)
    await page.until("document.querySelectorAll('.chart svg').length > 3")
    for view in VIEWS:
        said = await show(page, view)
        if view not in ("curves", "cost"):
            assert HOSTILE in said, view
        assert await page.run("document.images.length + document.querySelectorAll('main script').length") == 0
        assert await page.run("document.title") != "1"


async def test_only_who_opens_the_address_with_the_token_changes_experience(page: Page, address: str) -> None:
    button = "[...document.querySelectorAll('button')].find((one) => one.textContent === '{}')"
    await page.open(f"{address}#/experience")
    for attempt in ("document.body.innerText.includes('the printed address with the token')", button.format("Unpin")):
        await page.until(button.format("Pin"))
        await page.run(f"{button.format('Pin')}.click()")
        await page.until(attempt)
        await page.run("location.hash = '#token=t0ken'")
        await page.until("location.hash === ''")
        await show(page, "experience")


async def test_a_step_that_is_trained_meanwhile_appears(page: Page, address: str, run: Path) -> None:
    await page.open(f"{address}#/curves")
    await page.until("document.querySelector('.facts dd')?.textContent === '3'")
    write_metrics(run, 4, 5)
    (run / "launches" / "261121-000000-abcd.json").write_text(
        '{"run_id": "x", "started_at": "2026", "hardware": {"host": "elsewhere"}}'
    )
    await page.until("document.querySelector('.facts dd').textContent === '4'")
    await page.until("document.querySelector('#status').textContent.includes('another machine')")
    await show(page, "trajectories")
    write_jsonl(run / "trajectories" / "step_4.jsonl", make_records(4, 1))
    await page.until("document.querySelector('tbody td').textContent === '4'")


async def test_runs_are_compared(page: Page, run: Path) -> None:
    other = make_run(run.parent / "other", steps=5)
    for seed, folder in enumerate((run, other)):
        (folder / "config.yaml").write_text(f"trainer: {{save_freq: {seed}}}\ndata: {{seed: {seed}}}\n")
    records = list(make_records(3, 2))
    records[0]["steps"][1]["action"] = "leave"
    write_jsonl(other / "trajectories" / "step_3.jsonl", records)
    with serving(run, other) as address:
        await page.open(f"{address}#/compare")
        await page.until("document.querySelectorAll('.chart svg').length > 2")
        said = await page.text()
        for text in ("pocket/demo", "pocket/other", "data.seed", "1 keys that only say how long", "note_del"):
            assert text in said, text
        lines = "document.querySelectorAll('[aria-label^=Validation] svg path').length"
        assert await page.run(lines) == 2
        await page.run("document.querySelectorAll('.which input')[1].click()")
        await page.until(f"{lines} === 1 && location.hash.includes('without=pocket%2Fother')")
        await page.call("Page.reload")
        await page.until(f"{lines} === 1")
        await show(page, "task?id=note_del.k0.3")
        assert "2 of 3" in await page.text()
        boxes = "[...document.querySelectorAll('input[name=mark]')]"
        for number in (0, 4):
            await page.run(f"{boxes}[{number}].click()")
        await page.run(
            "[...document.querySelectorAll('a.button')].find((a) => a.textContent.includes('side by side')).click()"
        )
        await page.until("document.querySelector('.first-difference')")
        assert "They first differ at turn 1: what the policy says." in await page.text()
        assert "leave" in await page.run("document.querySelector('.first-difference').innerText")
        assert page.problems == []
