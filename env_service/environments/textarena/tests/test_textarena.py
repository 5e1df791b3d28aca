"""TextArena: random games end by their rules, each seat hears what it may, and whoever plays the others is named.

`TEXTARENA_RANDOM_GAMES=1000` plays so many games, spread over all that are offered; without it each once.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from chat_model import Model, served
from local_hosts import serving

from env_service.client import AsyncEnvClient
from env_service.contract import checked_init_state, checked_step
from env_service.environments.textarena import package
from env_service.environments.textarena.demonstrate import demonstrations
from env_service.environments.textarena.env import TextarenaEnv
from env_service.environments.textarena.games import GAMES, listed
from env_service.environments.textarena.match import TextArenaMatch
from env_service.environments.textarena.players import Minimax, PlayerFailed, RandomPlayer
from env_service.environments.textarena.tasks import TaskId

ROUNDS = -(-int(os.environ.get("TEXTARENA_RANDOM_GAMES", "0")) // len(GAMES)) or 1


def says(env: TextarenaEnv, text: str) -> Any:
    return checked_step(env.step({"role": "assistant", "content": text}))


def begun(task_id: str, **params: Any) -> tuple[TextarenaEnv, list[Any]]:
    env = TextarenaEnv(task_id, "one", params)
    return env, list(checked_init_state(env.get_init_state())["state"])


def outcome(env: TextarenaEnv) -> float:
    return env.evaluate(params={"sparse": False})


def test_what_cannot_be_imported_names_the_remedy_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(package.importlib, "import_module", missing)  # type: ignore[attr-defined]
    package.package.cache_clear()
    with pytest.raises(package.TextarenaNotInstalled, match=r"textarena/setup\.sh"):
        package.package()
    package.package.cache_clear()


def test_seats_alternate_and_seeds_part_the_splits_without_the_package() -> None:
    ids = {split: TextarenaEnv.get_query_list(split) for split in ("train", "dev", "test")}
    assert ids["train"][:3] == [
        "TicTacToe-v0.0.1000.random",
        "TicTacToe-v0.1.1000.random",
        "TicTacToe-v0.0.1001.random",
    ]
    assert len({*ids["train"], *ids["dev"], *ids["test"]}) == sum(map(len, ids.values())) == 3 * 80
    chosen = TextarenaEnv.get_query_list("dev", {"games": ["SecretMafia-v0"], "others": ["llm", "random"], "seeds": 1})
    assert len(chosen) == 12 and chosen[-1] == "SecretMafia-v0.5.0.random"


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"game": 1}, "known: games"),
        ({"games": ["Chess-v0"]}, "list with some of"),
        ({"seeds": 0}, "1 to 500"),
        ({"others": "random"}, "list of players"),
        ({"others": ["human"]}, "none of the players"),
        ({"games": ["KuhnPoker-v0"], "others": ["minimax"]}, "does not play KuhnPoker-v0"),
    ],
)
def test_a_list_of_tasks_that_cannot_be_is_refused_without_the_package(params: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TextarenaEnv.get_query_list("train", params)
    with pytest.raises(ValueError, match="unknown split"):
        TextarenaEnv.get_query_list("val2")


@pytest.mark.parametrize(
    "task_id",
    ["", "Chess-v0.0.1.random", "Nim-v0.2.1.random", "Nim-v0.0.01.random", "Nim-v0.0.1.human", "Nim-v0.0.1", "a/b"],
)
def test_a_task_that_is_none_is_refused_without_the_package(task_id: str) -> None:
    with pytest.raises(ValueError, match=r"no textarena task|has the seats|none of the players"):
        TaskId.read(task_id)


def test_listed_moves_are_those_of_the_last_list_without_the_package() -> None:
    told = ["Available Moves: [1], [2]", "You moved [9].\nAvailable Moves: '[a b]', '[c]'", "so [3]"]
    assert listed(told) == ["[a b]", "[c]"] and listed(["nothing"]) == []


@pytest.mark.service
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("game", GAMES)
def test_random_games_end_by_their_rules(game: str) -> None:
    for seed in range(ROUNDS):
        match, rng = TextArenaMatch(game, seed), random.Random(seed)
        while not match.over:
            assert match.moves < 1000, (game, seed)
            rules, heard = match.hears(match.turn)
            refused = match.play(RandomPlayer(rng).move(match, rules, heard))
            assert refused is None, (game, seed, refused)
        assert set(match.outcome) == set(range(match.seats)), (game, seed)
        assert all(-1 <= reward <= 1 for reward in match.outcome.values())
        assert not any(match.broke_rules(seat) for seat in range(match.seats)) and match.reason(0)


HOSTILE = [
    "",
    "[",
    "[]",
    "[[]]",
    "x" * 3000,
    "[" + "9" * 900 + "]",
    "[-1]",
    "\x00",
    "ä∞",
    "[0 0 0 0]",
    "[99 99]",
    "[up]",
]
HOSTILE += ["[play 99]", "[Bid: 0, 0]", "[bet 99999999]", "[Accept]", "[Offer: 9 x -> y]", "[Player 99]", "[A-5 B25]"]


@pytest.mark.service
@pytest.mark.parametrize("game", GAMES)
def test_whatever_is_said_is_answered_until_the_game_ends(game: str) -> None:
    env, _ = begun(f"{game}.1.3.random")
    rng, over = random.Random(game), False
    while not over:
        result = says(env, rng.choice(HOSTILE))
        over = result["is_terminated"]
    assert result["info"]["stop_reason"] in ("lost_by_rules", "finished", "max_steps") and 0 <= outcome(env) <= 1


def test_a_move_that_is_not_allowed_is_asked_for_again_and_the_second_one_loses() -> None:
    env, opening = begun("TicTacToe-v0.0.1000.random")
    assert "You are Player 0 in Tic Tac Toe." in opening[0]["content"] and "Available Moves" in opening[1]["content"]
    result = says(env, "I take the middle of nowhere")
    assert (
        "correct format" in result["info"]["refused"] and "attempted an invalid move" in result["state"][0]["content"]
    )
    assert says(env, "<think>[0]</think>4")["info"]["refused"] is False  # the package's wrapper puts the brackets
    says(env, "[9]")
    result = says(env, "[9]")
    assert result["is_terminated"] and (result["info"]["stop_reason"], result["info"]["finished"]) == (
        "lost_by_rules",
        False,
    )
    assert outcome(env) == env.evaluate() == result["reward"] == 0.0 and "You lost." in result["state"][0]["content"]
    with pytest.raises(ValueError, match="is over"):
        says(env, "[1]")


def test_outcomes_are_mapped_to_scores_and_a_draw_is_half() -> None:
    found: Counter[tuple[float, float]] = Counter()
    for seed in range(1000, 1040):
        env, _ = begun(f"TicTacToe-v0.{seed % 2}.{seed}.random")
        rng, over = random.Random(seed), False
        while not over:
            over = says(env, rng.choice(env.get_info(params={"what": "legal"})))["is_terminated"]
        found[outcome(env), env.evaluate()] += 1
    assert set(found) == {(0.0, 0.0), (0.5, 0.0), (1.0, 1.0)}
    ranked = TextArenaMatch("ThreePlayerGOPS-v0", 2)
    env = TextarenaEnv("ThreePlayerGOPS-v0.0.2.random", "one")
    env._match = ranked
    ranked.game.state.set_game_outcome({0: 0.0, 1: 1.0, 2: -1.0}, "ranked")
    assert (outcome(env), env.evaluate()) == (0.5, 0.0)


def test_a_game_without_an_end_or_a_goal_is_worth_nothing() -> None:
    env, _ = begun("TicTacToe-v0.0.1000.random", max_steps=1)
    result = says(env, "[4]")
    assert (result["is_terminated"], result["info"]["stop_reason"], outcome(env)) == (True, "max_steps", 0.0)
    env, opening = begun("Nim-v0.0.1000.random", is_open_query=True)
    assert "without a goal" in opening[0]["content"]
    for move in ("[0 3]", "[2 5]", "[1 4]"):
        if env.get_info(params={"what": "legal"}) and not (result := says(env, move))["is_terminated"]:
            continue
    assert outcome(env) == 0.0


def test_a_seed_gives_the_same_game_and_leaves_pythons_generator_alone() -> None:
    random.seed(5)
    state = random.getstate()
    told = []
    for _ in range(2):
        env, opening = begun("LiarsDice-v0.1.1007.random")
        told.append([message["content"] for message in opening])
        told[-1] += [says(env, "[Call]")["state"][0]["content"]]
        random.random()
        random.setstate(state)
    assert told[0] == told[1] and begun("LiarsDice-v0.1.1008.random")[1][1]["content"] != told[0][1]
    TextArenaMatch("KuhnPoker-v0", 1)
    assert random.getstate() == state


def test_a_seat_hears_its_own_cards_and_not_its_own_words() -> None:
    match = TextArenaMatch("KuhnPoker-v0", 4)
    cards = match.game.state.game_state["player_cards"]
    rank = {0: "J", 1: "Q", 2: "K"}
    heard = {seat: match.hears(seat) for seat in range(2)}
    for seat in range(2):
        assert f"You are Player {seat} in" in heard[seat][0]
        assert f"Your card is: '{rank[cards[seat]]}'" in heard[seat][1] and rank[cards[1 - seat]] not in heard[seat][1]
    first = match.turn
    match.play("[bet]")
    own, other = match.hears(first)[1], match.hears(1 - first)[1]
    assert f"[Player {first}] [bet]" in other and f"[Player {first}]" not in own and "submitted move" in own


def test_of_several_boards_the_last_is_told() -> None:
    match = TextArenaMatch("ConnectFour-v0", 0)
    for column in (0, 1, 2):
        match.play(f"[col {column}]")
    heard = match.hears(match.turn)[1]
    assert heard.count("Board state") == 1 and heard.count("dropped their disk") == 3


@pytest.mark.thorough
def test_minimax_wins_what_is_won_and_a_seed_gives_the_same_moves() -> None:
    for seed in range(2):
        match = TextArenaMatch("Nim-v0", seed)
        players: list[Any] = [Minimax(random.Random(seed)), RandomPlayer(random.Random(seed))]
        while not match.over:
            match.play(players[match.turn].move(match, "", ""))
        assert match.outcome == {0: 1.0, 1: -1.0}
    match = TextArenaMatch("TicTacToe-v0", 0)
    match.play("[4]")
    match.play("[0]")
    match.play("[8]")
    assert Minimax(random.Random(1)).move(match, "", "") in ("[2]", "[6]")  # any other move loses to a fork


def test_a_copy_of_a_match_shares_nothing_with_it() -> None:
    match = TextArenaMatch("TicTacToe-v0", 1)
    after = match.after("[4]")
    assert after is not None and after.turn == 1 and match.turn == 0 and len(match.legal_moves()) == 9
    assert match.after("[9]") is None and match.refused is None
    assert match.play("[4]") is None and match.after("[4]") is None and len(after.legal_moves()) == 8


def test_demonstrations_are_legal_games_of_all_seats_beside_the_listed_tasks() -> None:
    found = demonstrations("Nim-v0", 6)
    assert {one["task_id"].split(".")[1] for one in found} == {"0", "1"}
    assert not {one["task_id"] for one in found} & {*TextarenaEnv.get_query_list("train", {"seeds": 500})}
    for one in found:
        env, _ = begun(one["task_id"])
        results = [says(env, action) for action in one["actions"]]
        assert [result["is_terminated"] for result in results] == [False] * (len(results) - 1) + [True]
        assert not any(result["info"]["refused"] for result in results)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    with served() as made:
        monkeypatch.setenv("ENV_TEXTARENA_LLM_URL", f"{made.url}/v1")
        monkeypatch.setenv("ENV_TEXTARENA_LLM_MODEL", "talker")
        monkeypatch.setenv("ENV_TEXTARENA_LLM_KEY", "sk-secret")
        monkeypatch.setenv("ENV_PLAYER_URL", made.url)
        monkeypatch.delenv("PLAYER_TOKEN", raising=False)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield made


@pytest.mark.service
def test_a_chat_model_on_a_seat_hears_what_an_agent_would(model: Model) -> None:
    model.replies = [{"content": "<think>the middle</think>[4]"}, 503, {"content": "[0]"}]
    env, opening = begun("TicTacToe-v0.1.1000.llm")
    assert "placed their symbol (O) in cell 4" in opening[1]["content"]
    told = says(env, "[8]")["state"][0]["content"]
    assert "cell 0" in told and env.get_info(params={"what": "state"})["facts"]["moves"] == 3
    first, _, last = model.asked
    assert first["model"] == "talker" and "seed" not in first and set(model.keys) == {"Bearer sk-secret"}
    assert [message["role"] for message in last["messages"]] == ["system", "user", "assistant", "user"]
    assert "You are Player 0 in Tic Tac Toe." in first["messages"][0]["content"]
    assert first["messages"][0]["content"].split("\n")[0] == opening[0]["content"].split("\n")[0]


@pytest.mark.service
def test_a_frozen_policy_is_asked_by_its_checkpoint_with_seeds_of_the_match(model: Model) -> None:
    model.replies = [{"content": "[2 5]"}, {"content": "[0 3]"}, {"content": "[2 5]"}]
    env, _ = begun("Nim-v0.1.1000.policy", checkpoint="/pool/step_10")
    says(env, "[1 3]")
    begun("Nim-v0.1.1000.policy", checkpoint="/pool/step_10")
    assert {asked["model"] for asked in model.asked} == {"/pool/step_10"} and model.keys == [None] * 3
    seeds = [asked["seed"] for asked in model.asked]
    assert seeds[0] == seeds[2] != seeds[1] and all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.service
def test_a_frozen_policy_whose_conversation_is_too_long_says_nothing(model: Model) -> None:
    model.replies = [400, 400]
    begun("Nim-v0.1.1000.policy", checkpoint="/pool/step_10")
    assert len(model.asked) == 2, "the game asks once more, and goes on"


@pytest.mark.service
def test_a_seat_that_does_not_answer_is_an_error_and_never_an_outcome(model: Model) -> None:
    model.replies = [401]
    with pytest.raises(PlayerFailed, match="HTTP 401") as failed:
        begun("TicTacToe-v0.1.1000.llm")
    assert "sk-secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("task_id", "params", "match"),
    [
        ("Nim-v0.0.1.llm", {}, "ENV_TEXTARENA_LLM_URL"),
        ("Nim-v0.0.1.policy", {}, "ENV_PLAYER_URL"),
        ("Nim-v0.0.1.random", {"max_steps": 0}, "1 to 1000"),
        ("Nim-v0.0.1.random", {"opponent": "x"}, "unknown parameter"),
    ],
)
def test_who_cannot_play_is_refused_at_create(
    monkeypatch: pytest.MonkeyPatch, task_id: str, params: dict[str, Any], match: str
) -> None:
    for name in ("ENV_TEXTARENA_LLM_URL", "ENV_TEXTARENA_LLM_MODEL", "ENV_PLAYER_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=match):
        TextarenaEnv(task_id, "one", params)
    monkeypatch.setenv("ENV_PLAYER_URL", "http://127.0.0.1:1")
    if task_id.endswith("policy"):
        with pytest.raises(ValueError, match="parameter checkpoint"):
            TextarenaEnv(task_id, "one")


@pytest.mark.service
async def test_a_social_game_is_played_through_the_service_by_six_seats(model: Model) -> None:
    """The agent and five chat models play. Each speaks by day and votes for one of the names offered."""

    def speaks(asked: dict[str, Any]) -> dict[str, str]:
        return {"content": said(asked["messages"][-1]["content"])}

    model.otherwise = speaks
    environments = {"textarena": "env_service.environments.textarena.env:TextarenaEnv"}
    async with serving(environments) as running, AsyncEnvClient(running.url) as client:
        opened = await client.create_instance("textarena", "SecretMafia-v0.2.1003.llm", "one")
        assert "Welcome to Secret Mafia! You are Player 2." in opened["state"][0]["content"]
        heard, over = opened["state"][-1]["content"], False
        while not over:
            result = await client.step("one", {"role": "assistant", "content": said(heard)})
            heard, over = result["state"][-1]["content"], result["is_terminated"]
        assert result["info"]["finished"] and result["info"]["refused"] is False
        state = await client.get_tools_info("one", params={"what": "state"})
        score = await client.evaluate("one", params={"sparse": False})
    outcomes = state["facts"]["outcome"]
    assert sorted(outcomes) == list("012345") and score == (outcomes["2"] + 1) / 2
    seats = {asked["messages"][0]["content"].partition("You are Player ")[2][0] for asked in model.asked}
    assert seats <= set("01345") and len(seats) >= 3


def said(heard: str) -> str:
    """What a scripted seat of Secret Mafia says: a vote for the last name that is offered, where votes are due."""
    lines = heard.splitlines()
    offered = [line for line in lines if "Valid" in line or "choose one player" in line]
    talk = any(line.startswith("Day breaks") for line in lines)
    voting = offered and (
        not talk or lines.index(offered[-1]) > max(i for i, x in enumerate(lines) if "Day breaks" in x)
    )
    return "[" + offered[-1].rpartition("[")[2].partition("]")[0] + "]" if voting else "I am only a villager."
