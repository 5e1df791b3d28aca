"""The page in a real browser. Skipped where there is none: `apt-get install chromium-headless-shell`, or name one in
VIEW_BROWSER."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvicorn

from agentevolver.utils.files import write_jsonl
from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment
from experience_manager.store import Store
from tests.agentevolver.view.browser import Page, browser, find_browser
from tests.agentevolver.view.runs import HOSTILE, make_records, make_rounds, make_run, proposal_record, write_metrics

BROWSER = find_browser()
VIEWS = ("curves", "trajectories", "trajectory/training/3/1", "tasks", "experience", "cost", "system", "run")
READY = (
    "!document.querySelector('#main').innerText.startsWith('Loading') && "
    "document.querySelector('#main').children.length > 0"
)
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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(create_app(Experiment(run), page_access("127.0.0.1")), log_level="error")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest_asyncio.fixture
async def page(address: str) -> AsyncIterator[Page]:
    assert BROWSER is not None
    async with browser(BROWSER) as page:
        yield page


async def show(page: Page, view: str) -> str:
    await page.go(f"#/{view}")
    # The old view is gone once the frame has taken note of the new one.
    await asyncio.sleep(0.1)
    await page.until(READY)
    return await page.text()


async def test_every_view_shows_the_run_and_asks_nobody_else(page: Page, address: str) -> None:
    await page.open(address)
    await page.until("document.querySelectorAll('.chart svg').length > 3")
    said = {view: await show(page, view) for view in VIEWS}
    assert "pocket/demo" in said["curves"] and "step 3 of 3" in said["curves"] and "Validation reward" in said["curves"]
    assert "guided, stripped" in said["trajectories"] and "did not happen" in said["trajectories"]
    one = said["trajectory/training/3/1"]
    for text in (
        "success 1",
        "GOOD",
        "advantage +1.250",
        "stripped: the training prompt does not have it",
        "experience, injected here",
        "Judge: it closed",
    ):
        assert text in one
    assert (
        "solution ran through" in said["tasks"]
        and "dropped: judge" in said["tasks"]
        and "note/n3 is gone" in said["tasks"]
    )
    assert (
        "Read the doc of note.del first." in said["experience"]
        and "used 4 times, 75.0 % successful" in said["experience"]
    )
    assert "explorer" in said["cost"] and "44.0 %" in said["cost"]
    assert "This machine" in said["system"] and "loading" in said["run"] and "sk-secret" not in said["run"]
    assert page.problems == [] and page.requests and all(url.startswith((address, "data:")) for url in page.requests)


async def test_what_a_model_wrote_stays_text(page: Page, address: str) -> None:
    await page.open(address)
    await page.until("document.querySelectorAll('.chart svg').length > 3")
    for view in VIEWS:
        said = await show(page, view)
        if view not in ("curves", "cost", "system"):
            assert HOSTILE in said, view
        assert await page.run("document.images.length + document.querySelectorAll('main script').length") == 0
        assert await page.run("document.title") != "1"


@pytest.mark.parametrize("dark", [False, True])
async def test_it_fits_wide_and_narrow_windows(dark: bool, page: Page, address: str) -> None:
    for width in (1280, 400):
        await page.open(address, width=width, dark=dark)
        for view in VIEWS:
            await show(page, view)
            assert await page.run("document.documentElement.scrollWidth") <= width, view
    background = await page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in background[4:-1].split(",")) < 200) == dark


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


async def test_validations_of_several_splits_with_and_without_guidance_are_told_apart(
    page: Page, address: str, run: Path
) -> None:
    places = ("dev", "test", "dev/guided", "test/guided")
    validation = {
        f"val-core/pocket/{place}/reward/{what}": 0.5 for place in places for what in ("mean@4", "best@4/mean")
    }
    write_jsonl(
        run / "metrics.jsonl",
        [
            {"step": 0, "time": 1.0, "llm/spent_tokens": 1_000_000, **validation},
            {"step": 1, "time": 2.0, "llm/spent_tokens": 4_000_000},
        ],
    )
    await page.open(f"{address}#/curves")
    await page.until("document.querySelector('[aria-label=\"Validation reward\"] .legend')")
    legend = "[...document.querySelectorAll('[aria-label=\"Validation reward\"] .legend li')]"
    names = await page.run(f"{legend}.map((item) => item.firstChild.nextSibling.textContent)")
    assert set(names) == {
        f"{split} {what}@4{guided}"
        for what in ("avg", "best")
        for guided in ("", ", guided")
        for split in ("dev", "test")
    }
    assert len(names) == len(set(names))
    await show(page, "cost")
    ticks = await page.run(
        "[...document.querySelectorAll('[aria-label=\"Tokens spent\"] svg text')].map((text) => text.textContent)"
    )
    assert "4M" in ticks and not [tick for tick in ticks if len(tick) > 5]


async def test_the_keyboard_is_enough(page: Page, address: str) -> None:
    await page.open(f"{address}#/trajectory/training/3/0")
    await page.until("document.querySelector('.tokens')")
    await page.press("Tab")
    assert await page.run("document.activeElement.textContent") == "Skip to the content"
    await page.press("ArrowRight")
    await page.until("location.hash === '#/trajectory/training/3/1'")
    await page.until(
        "document.querySelector('#main').innerText.includes('2 of 8') && document.querySelector('.tokens')"
    )
    await page.run("document.querySelector('.tokens').focus()")
    await page.press("ArrowRight")
    await page.until("document.querySelector('.token-fact').textContent.includes('advantage +0.5000')")
    assert await page.run("location.hash") == "#/trajectory/training/3/1"
    await show(page, "curves")
    await page.run("document.querySelector('.chart svg').focus()")
    await page.press("ArrowRight")
    await page.until("document.querySelector('.legend').textContent.includes('step 0')")


async def test_filters_are_in_the_address(page: Page, address: str) -> None:
    await page.open(f"{address}#/trajectories?outcome=failed&step=2")
    await page.until("document.querySelectorAll('tbody tr').length === 2")
    await page.run(
        "document.querySelector('[name=outcome]').value = ''; document.querySelector('form').requestSubmit()"
    )
    await page.until("location.hash === '#/trajectories?step=2' && document.querySelectorAll('tbody tr').length === 8")


async def test_an_experience_is_pinned_edited_and_deleted(page: Page, address: str, run: Path) -> None:
    await page.open(f"{address}#/experience?text=e1")
    button = "[...document.querySelectorAll('.card button')].find((b) => b.textContent === '{}')"
    await page.until(button.format("Pin"))
    await page.run(button.format("Pin") + ".click()")
    await page.until(button.format("Unpin"))
    await page.run(button.format("Edit") + ".click()")
    await page.run(f"document.querySelector('textarea[name=content]').value = {HOSTILE!r}")
    await page.run(button.format("Save") + ".click()")
    await page.until(
        "document.querySelector('.card')?.innerText.includes('onerror') && "
        "document.querySelector('.card').innerText.includes('yours')"
    )
    with Store(run / "experience.sqlite") as store:
        now = store.get("default", "e1")
        assert now.pinned and now.content == HOSTILE and now.by_person
    await page.run(button.format("Delete") + ".click()")
    await page.run(button.format("Really delete?") + ".click()")
    await page.until("!document.querySelector('.card')")
    with Store(run / "experience.sqlite") as store:
        assert store.workspaces() == {"default": 2}


async def test_what_is_empty_or_wrong_is_said(page: Page, address: str, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    await page.open(address)
    await page.until("document.body.innerText.includes('No step is recorded yet.')")
    assert "There is no such view." in await show(page, "nothing")
    assert "there are no rollouts of step 99" in await show(page, "trajectory/training/99/0")
    assert "No rollout fits." in await show(page, "trajectories?text=nobody-wrote-this")


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
