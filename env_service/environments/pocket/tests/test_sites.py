"""Quirks of sites: a wrong call changes nothing and says how to do it, and what it says works."""

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.quirks import N_SITES, quirks_of
from env_service.environments.pocket.tasks import make_task
from env_service.environments.pocket.tests.replays import hint_parts, lesson, snapshot

WRONG = {
    ("guard", "doc"): ("note_del", lambda t: str(t.plan[1]), "err read doc note.del first"),
    ("guard", "yes"): ("note_del", lambda t: str(t.plan[1]), "err add yes at the end"),
    ("pay", "name"): ("pay", lambda t: "bank.pay {1} {0}".format(*t.plan[0].args), "err use bank.pay NAME AMOUNT"),
    ("pay", "amount"): ("pay", lambda t: str(t.plan[0]), "err use bank.pay AMOUNT NAME"),
    ("login", "pin"): ("balance", lambda t: "bank.bal", "err login first"),
    ("plan", "name"): (
        "cal_add",
        lambda t: "cal.add {1} {2} {0}".format(*t.plan[0].args),
        "err use cal.add NAME DAY HOUR",
    ),
    ("plan", "day"): ("cal_add", lambda t: str(t.plan[0]), "err use cal.add DAY HOUR NAME"),
    ("look", "first"): ("buy", lambda t: str(t.plan[0]), None),
}


def said(env, text):
    return env.step({"role": "assistant", "content": text})["state"][0]["content"]


@pytest.mark.parametrize("site", range(N_SITES))
def test_each_wrong_call_changes_nothing_and_teaches_the_part_of_the_hint_it_fails_on(site):
    quirks = quirks_of(site)
    for (quirk, value), (family, wrong_call, error) in WRONG.items():
        if getattr(quirks, quirk) != value:
            continue
        task = make_task(f"{family}.k{site}.7")
        env = PocketEnv(task.id, "i", {"slack": 9})
        if quirks.login == "pin" and quirk in ("pay", "look"):
            said(env, f"bank.login {env.world.pin}")
        before = snapshot(env)
        text = said(env, wrong_call(task))
        assert text == (error or f"err find {task.plan[0].args[0]} first")
        assert snapshot(env) == before
        assert lesson(text) == hint_parts(task.id)[quirk]


@pytest.mark.parametrize("family", ["note_retag", "cal_move", "note_del", "cal_del", "mail_del", "refund"])
@pytest.mark.parametrize("site", range(N_SITES))
def test_every_change_or_removal_is_guarded(family, site):
    task = make_task(f"{family}.k{site}.7")
    env = PocketEnv(task.id, "i")
    before = snapshot(env)
    wanted = "add yes at the end" if quirks_of(site).guard == "yes" else f"read doc {task.plan[1].tool} first"
    assert said(env, str(task.plan[1])) == f"err {wanted}"
    assert snapshot(env) == before


@pytest.mark.parametrize("site", range(N_SITES))
def test_manuals_tell_every_demand_of_a_site(site):
    quirks = quirks_of(site)
    env = PocketEnv(f"open.k{site}.1", "i", {"explore_steps": 9})
    assert said(env, "doc bank.pay").startswith("use bank.pay NAME" if quirks.pay == "name" else "use bank.pay AMOUNT")
    assert said(env, "doc cal.add").startswith("use cal.add NAME" if quirks.plan == "name" else "use cal.add DAY")
    assert ("yes" in said(env, "doc mail.del")) == (quirks.guard == "yes")
    manual = said(env, "doc shop.buy")
    assert ("login first" in manual) == (quirks.login == "pin")
    assert ("find first" in manual) == (quirks.look == "first")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "err empty call , write TOOL ARGS on one line"),
        ("note.burn n1", "err no tool note.burn , try doc"),
        ("doc note.burn", "err no tool note.burn , try doc"),
        ("note.add milk", "err use note.add WORD TAG"),
        ("note.add milk home now", "err use note.add WORD TAG"),
        ("note.add home milk", "err use note.add WORD TAG"),
        ("note.tag n99 home yes", "err no such id n99"),
        ("cal.move 3 mon yes", "err use cal.move ID DAY yes"),
        ("cal.move e3 mon no", "err add yes at the end"),
        ("cal.move e3", "err use cal.move ID DAY yes"),
        ("bank.login 77", "err wrong pin , see me.pin"),
        ("note.find", "err use note.find WORD"),
    ],
)
def test_an_error_names_what_was_wrong_and_how_to_do_it(text, error):
    env = PocketEnv("open.k2.1", "i")
    before = snapshot(env)
    assert said(env, text) == error
    assert snapshot(env) == before


def test_money_and_stock_are_checked_before_anything_changes():
    site = next(
        s
        for s in range(N_SITES)
        if quirks_of(s).login == "open" and quirks_of(s).look == "free" and quirks_of(s).pay == "name"
    )
    env = PocketEnv(f"open.k{site}.1", "i")
    before = snapshot(env)
    product, (_, left) = next(iter(env.world.tables.products.items()))
    assert said(env, "bank.pay bob 999") == f"err only {env.world.tables.balance} in the bank"
    assert said(env, f"shop.buy {product} {left + 1}") == f"err only {left} left"
    env.world.tables.balance = 1
    assert said(env, f"shop.buy {product} 1") == "err only 1 in the bank"
    env.world.tables.balance = before["balance",]
    assert snapshot(env) == before


def test_the_order_of_json_keys_counts_only_where_a_site_has_an_order():
    site = next(s for s in range(N_SITES) if quirks_of(s).pay == "amount" and quirks_of(s).login == "open")
    env = PocketEnv(f"open.k{site}.1", "i", {"syntax": "json"})
    wrong = '<tool_call>{"name": "bank.pay", "arguments": {"name": "bob", "amount": 3}}</tool_call>'
    right = '<tool_call>{"name": "bank.pay", "arguments": {"amount": 3, "name": "bob"}}</tool_call>'
    assert said(env, wrong) == 'err use bank.pay {"amount": AMOUNT, "name": NAME}'
    assert said(env, right) == "ok"
    assert said(env, '{"name": "note_add", "arguments": {"tag": "home", "word": "milk"}}').startswith("ok n")


def test_unknown_or_missing_json_keys_are_refused():
    env = PocketEnv("open.k0.1", "i", {"syntax": "json"})
    for arguments in (
        '{"thing": "milk", "tag": "home"}',
        '{"word": "milk"}',
        '{"word": "milk", "tag": "home", "hour": 3}',
        "{}",
    ):
        assert (
            said(env, f'{{"name": "note.add", "arguments": {arguments}}}')
            == 'err use note.add {"word": WORD, "tag": TAG}'
        )
