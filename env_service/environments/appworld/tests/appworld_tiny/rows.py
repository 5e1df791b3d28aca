"""The rows of the tiny world: four people and what they have in six apps. Invented here."""

from __future__ import annotations

from typing import Any

PEOPLE: dict[str, dict[str, str]] = {
    "ada": {"first_name": "Ada", "last_name": "Moss", "email": "ada.moss@example.com", "phone_number": "5550001111"},
    "ben": {"first_name": "Ben", "last_name": "Hale", "email": "ben.hale@example.com", "phone_number": "5550002222"},
    "cleo": {"first_name": "Cleo", "last_name": "Park", "email": "cleo.park@example.com", "phone_number": "5550003333"},
    "dov": {"first_name": "Dov", "last_name": "Lind", "email": "dov.lind@example.com", "phone_number": "5550004444"},
}
BIRTHDAYS = {"ada": "1990-01-02", "ben": "1988-07-14", "cleo": "1993-11-30", "dov": "1979-03-08"}
APPS = ("simple_note", "todoist", "file_system", "phone", "venmo", "spotify")


def password(person: str, app: str) -> str:
    """The password of a person's account."""
    return f"{person}-{app}-secret"


# owner, title, content, tags, pinned
NOTES: list[tuple[str, str, str, list[str], bool]] = [
    ("ada", "Groceries", "eggs\nmilk\nbread", ["home"], False),
    ("ada", "Standup", "talk about the release", ["work"], False),
    ("ada", "Road trip", "lake, then the hills", ["travel", "home"], False),
    ("ada", "Old ideas", "a hat for cats", [], False),
    ("ada", "Budget", "rent 900\nfood 300\ntrain 60", ["work", "money"], True),
    ("ada", "Reading list", "The Glass Harbour\nNorth of Nowhere", ["home"], False),
    ("ada", "Retro", "fewer meetings", ["work"], False),
    ("ada", "Gift ideas", "Cleo: a kite\nDov: tea", ["people"], False),
    ("ada", "Review", "chapter two is too long", ["work"], False),
    ("ben", "Ben's plan", "run on Tuesdays", ["sport"], False),
    ("ben", "Ben's recipes", "soup", ["home"], False),
]

# owner, project, tasks (title, priority, is_completed, day of May 2023 it is due)
PROJECTS: list[tuple[str, str, bool, list[tuple[str, str, bool, int]]]] = [
    ("ada", "Inbox", True, [("Call the bank", "medium", False, 20)]),
    (
        "ada",
        "House",
        False,
        [
            ("Fix the tap", "high", False, 19),
            ("Paint the fence", "low", False, 28),
            ("Buy bulbs", "medium", True, 10),
            ("Clean the gutter", "high", False, 25),
        ],
    ),
    ("ada", "Garden", False, [("Plant beans", "medium", False, 21), ("Trim the hedge", "low", True, 12)]),
    ("ben", "Club", False, [("Book the hall", "high", False, 30)]),
]

# owner, path, content
FILES: list[tuple[str, str, str]] = [
    ("ada", "/home/ada/docs/list.txt", "screws\nglue\n"),
    ("ada", "/home/ada/docs/plan.md", "# Plan\nfirst this, then that\n"),
    ("ada", "/home/ada/docs/old/plan_2021.md", "# Plan 2021\n"),
    ("ada", "/home/ada/pictures/lake.jpg", "a lake"),
    ("ada", "/home/ada/pictures/hill.jpg", "a hill"),
    ("ada", "/home/ada/pictures/cat.png", "a cat"),
    ("ben", "/home/ben/docs/notes.txt", "soup"),
]

# owner, contact, relationships
CONTACTS: list[tuple[str, str, list[str]]] = [
    ("ada", "ben", ["friend"]),
    ("ada", "cleo", ["sibling"]),
    ("ada", "dov", ["coworker", "friend"]),
    ("ben", "ada", ["friend"]),
]
# owner, time, label, enabled
ALARMS: list[tuple[str, str, str, bool]] = [
    ("ada", "06:30", "wake up", True),
    ("ada", "21:00", "tea", True),
    ("ada", "13:15", "walk", False),
]
# sender, receiver, text, day and hour of May 2023
TEXTS: list[tuple[str, str, str, int, int]] = [
    ("ben", "ada", "Are you coming on Sunday?", 14, 9),
    ("ada", "ben", "Yes, I bring the kite.", 14, 10),
    ("cleo", "ada", "Mum's new number is coming soon.", 16, 18),
    ("ben", "ada", "The gate code is 4711.", 17, 8),
]

BALANCES = {"ada": 250.0, "ben": 80.0, "cleo": 40.0, "dov": 10.0}
FRIENDSHIPS: list[tuple[str, str]] = [("ada", "ben"), ("ada", "cleo")]
# sender, receiver, amount, description, day of May 2023
PAYMENTS: list[tuple[str, str, float, str, int]] = [
    ("ada", "ben", 12.5, "pizza", 2),
    ("cleo", "ada", 30.0, "concert", 5),
    ("ada", "ben", 8.0, "bus", 9),
    ("ada", "dov", 20.0, "book", 11),
    ("ben", "ada", 5.0, "coffee", 15),
]
# who asks, who is asked, amount, description, day of May 2023
REQUESTS: list[tuple[str, str, float, str, int]] = [
    ("ben", "ada", 18.0, "tickets", 13),
    ("dov", "ada", 99.0, "a favour", 16),
    ("ada", "cleo", 15.0, "lunch", 17),
]

ARTISTS = {"The Lanterns": "indie", "Mira Voss": "jazz", "Stone Ferry": "rock"}
# title, artist, seconds, genre, release year
SONGS: list[tuple[str, str, int, str, int]] = [
    ("Harbour Light", "The Lanterns", 210, "indie", 2019),
    ("Paper Boats", "The Lanterns", 185, "indie", 2021),
    ("Blue Ladder", "Mira Voss", 305, "jazz", 2015),
    ("Slow Train", "Mira Voss", 260, "jazz", 2018),
    ("Granite", "Stone Ferry", 240, "rock", 2020),
    ("Ferry Song", "Stone Ferry", 199, "rock", 2022),
    ("Lantern Waltz", "The Lanterns", 224, "indie", 2017),
]
PLAYLISTS: list[tuple[str, str, list[str]]] = [
    ("ada", "Morning", ["Harbour Light", "Paper Boats", "Granite"]),
    ("ada", "Evening", ["Blue Ladder", "Slow Train"]),
    ("ben", "Gym", ["Ferry Song", "Granite"]),
]
LIBRARY: list[tuple[str, str]] = [
    ("ada", "Harbour Light"),
    ("ada", "Paper Boats"),
    ("ada", "Blue Ladder"),
    ("ada", "Granite"),
    ("ada", "Ferry Song"),
    ("ada", "Slow Train"),
]
LIKES: list[tuple[str, str]] = [("ada", "Blue Ladder"), ("ada", "Granite"), ("ben", "Granite")]


def accounts(person: str) -> list[dict[str, Any]]:
    """The account passwords that a supervisor knows."""
    return [{"account_name": app, "password": password(person, app)} for app in APPS]
