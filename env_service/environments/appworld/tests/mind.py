"""The tiny AppWorld of the tests: errands for its people, and what their data really is."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentevolver.llm.prompts import StepText
from tests.llm.minds.families import WORDS, FamiliesWorld, Family, Slots, nothing
from tests.llm.minds.world import Lesson, same

_TINY = Path(__file__).parents[2] / "env_service" / "appworld"
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_OUTPUT = re.compile(r"Output:\n```\n(.*?)\n```", re.DOTALL)
_COMPLETE = re.compile(r"apis\.supervisor\.complete_task\((?:answer=)?(.*?)\)\s*$", re.MULTILINE)
_LOGIN = """passwords = {{entry["account_name"]: entry["password"] for entry in \
apis.supervisor.show_account_passwords()}}
token = apis.{app}.login(username="{user}", password=passwords["{app}"])["access_token"]
"""
_PAGES = """entries, page = [], 0
while found := apis.{api}(page_index=page, access_token=token):
    entries, page = entries + found, page + 1
"""


def _signed(app: str, body: str) -> Any:
    def actions(slots: Slots, opening: str) -> list[str]:
        facts = re.search(r"\(email ([^,]+), phone number (\d+)\)", opening)
        user = "" if facts is None else facts[2] if app == "phone" else facts[1]
        code = _LOGIN.format(app=app, user=user) + body.format(**slots)
        return [f"```python\n{code}\n```"]

    return actions


def _read(slots: Slots, observations: Sequence[str]) -> str | None:
    found = _OUTPUT.search(observations[-1]) if observations else None
    return found[1].strip() if found is not None else None


def _words(*names: str) -> Any:
    return lambda rng: {name: f"{rng.choice(WORDS).title()} {rng.choice(WORDS)}" for name in names}


def _time(rng: random.Random) -> Slots:
    return {"time": f"{rng.randint(5, 22):02}:{rng.choice((5, 15, 25, 35, 45, 55)):02}"}


_TAGS = ("work", "home", "travel", "money", "people")
FAMILIES = (
    Family("note", "Make a note called {title} with the text '{text}'.", _words("title", "text"),
           _signed("simple_note", "print(apis.simple_note.create_note(title='{title}', content='{text}', "
                                  "access_token=token))"),
           changes=True),
    Family("tagged", "How many of my notes have the tag {tag}?", lambda rng: {"tag": rng.choice(_TAGS)},
           _signed("simple_note", _PAGES.format(api="simple_note.search_notes")
                   + "print(sum('{tag}' in note['tags'] for note in entries))"), _read),
    Family("alarm", "Set an alarm at {time} on my phone.", _time,
           _signed("phone", "print(apis.phone.create_alarm(time='{time}', access_token=token))"), changes=True),
    Family("contacts", "How many contacts are in my phone?", nothing,
           _signed("phone", _PAGES.format(api="phone.search_contacts") + "print(len(entries))"), _read),
    Family("venmo", "What is my balance on Venmo?", nothing,
           _signed("venmo", "print(apis.venmo.show_venmo_balance(access_token=token)['venmo_balance'])"), _read),
    Family("file", "Write a file ~/{name}.txt that holds the words '{text}'.",
           lambda rng: {"name": rng.choice(WORDS) + rng.choice(WORDS), "text": " ".join(rng.sample(WORDS, 2))},
           _signed("file_system", "print(apis.file_system.create_file(file_path='~/{name}.txt', content='{text}', "
                                  "access_token=token))"),
           changes=True),
    Family("project", "Start a to-do project called {title}.", _words("title"),
           _signed("todoist", "print(apis.todoist.create_project(name='{title}', access_token=token))"), changes=True),
)  # fmt: skip


class AppworldWorld(FamiliesWorld):
    """Everyday apps."""

    env_type = "appworld"
    families = FAMILIES
    lessons = (
        Lesson("when an app wants an access "
               "token", "Get the password from the supervisor app, log in to the app, and pass its token on.",
               "Make up a token, since every app takes any."),
        Lesson("when entries are to be counted", "Go through all pages until one is empty, and only then count.",
               "Count the first page alone, there are never more."),
        Lesson("when everything is "
               "done", "Call complete_task of the supervisor, with the bare answer if one was asked for.",
               "Never call complete_task, the episode ends by itself."),
    )  # fmt: skip

    def recognises(self, opening: str) -> bool:
        return "apis.supervisor" in opening

    def closing(self, answer: str | None) -> str | None:
        argument = (
            ""
            if answer is None
            else f"answer={answer}"
            if re.fullmatch(r"-?\d+(\.\d+)?", answer)
            else f"answer={answer!r}"
        )
        return f"```python\napis.supervisor.complete_task({argument})\n```"

    def answered(self, action: str) -> str | None:
        found = _COMPLETE.search(action)
        return found[1].strip("'\"") if found is not None else None

    def canonical(self, action: str) -> str:
        found = _CODE.search(action)
        return (found[1] if found is not None else action).strip()

    def changes(self, action: str) -> bool:
        return re.search(r"\.(create|update|delete|add|remove|send|mark)_", action) is not None

    def refused(self, step: StepText) -> bool:
        return "Execution failed" in step.observation or step.observation.startswith("Nothing was executed")

    def call(self, action: str) -> tuple[str, dict[str, Any]] | None:
        found = _CODE.search(action)
        return ("appworld", {"code": found[1]}) if found is not None else None

    def right(self, seed_task_id: str, query: str, solution: Sequence[str]) -> bool:
        """The rows of the tiny world are its truth; that the code runs was seen when it was carried out."""
        if str(_TINY) not in sys.path:
            sys.path.append(str(_TINY))
        from appworld_tiny import catalogue, rows

        person = catalogue.TASKS[seed_task_id].supervisor
        facts = rows.PEOPLE[person]
        goal = self.goal_of(query, f"(email {facts['email']}, phone number {facts['phone_number']})", [])
        if goal is None or [self.canonical(a) for a in solution[:-1] if self.changes(a)] != [
            self.canonical(a) for a in goal.actions if self.changes(a)
        ]:
            return False
        tag = (self.families[1].slots(query) or {}).get("tag")
        truth = {
            "tagged": sum(owner == person and tag in tags for owner, _, _, tags, _ in rows.NOTES),
            "contacts": sum(owner == person for owner, _, _ in rows.CONTACTS),
            "venmo": rows.BALANCES[person],
        }
        return not goal.asks or same(self.answered(solution[-1]) or "", str(truth[goal.kind]))


PLAYER = AppworldWorld()
