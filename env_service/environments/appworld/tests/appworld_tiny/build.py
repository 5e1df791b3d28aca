"""Writes the tiny world as an AppWorld data folder: `APPWORLD_ROOT=<folder> <venv>/bin/python -I build.py`.

Uses AppWorld's own models and its own API documentation, so what it writes must stay out of the repository, like
AppWorld's data itself. Prints one line with the time taken.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from appworld_tiny import catalogue, rows

DATA = Path(os.environ["APPWORLD_ROOT"]) / "data"
CREATED = datetime(2023, 1, 1, 9)
NOW = "2023-05-18T12:00:00"


def may(day: int, hour: int = 12) -> datetime:
    """A time in May 2023."""
    return datetime(2023, 5, day, hour)


def add_people(models: Any) -> dict[str, dict[str, int]]:
    """Add everybody, with an account in every app; return user ids by app and person."""
    ids: dict[str, dict[str, int]] = {app: {} for app in rows.APPS}
    for person, facts in rows.PEOPLE.items():
        models.admin.MainUser.create_save(**facts, birthday=rows.BIRTHDAYS[person], sex=None)
        for app in rows.APPS:
            fields = {
                key: value for key, value in facts.items() if key != ("email" if app == "phone" else "phone_number")
            }
            fields |= {"password": rows.password(person, app), "created_at": CREATED, "last_logged_in": CREATED}
            if app != "phone":
                fields["verified"] = True
            if app == "venmo":
                fields["venmo_balance"] = rows.BALANCES[person]
            ids[app][person] = models[app].User.create_save(**fields).id
    return ids


def add_home(models: Any, ids: dict[str, dict[str, int]]) -> None:
    """Add notes, to-do lists and files."""
    for owner, title, content, tags, pinned in rows.NOTES:
        models.simple_note.Note.create_save(
            user_id=ids["simple_note"][owner],
            title=title,
            content=content,
            tags=tags,
            pinned=pinned,
            created_at=CREATED,
            updated_at=CREATED,
        )
    todo = models.todoist
    for owner, name, is_inbox, tasks in rows.PROJECTS:
        user = ids["todoist"][owner]
        project = todo.Project.create_save(user_id=user, name=name, is_inbox=is_inbox, created_at=CREATED)
        todo.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=user, created_at=CREATED)
        for index, (title, priority, is_completed, day) in enumerate(tasks):
            todo.Task.create_save(
                project_id=project.id, user_id=user, title=title, priority=priority, is_completed=is_completed,
                due_date=may(day), order_index=index, created_at=CREATED,
            )  # fmt: skip
    seen: set[tuple[str, str]] = set()
    for owner, path, content in rows.FILES:
        user = ids["file_system"][owner]
        for folder in reversed(Path(path).parents):
            text = str(folder) if str(folder) == "/" else f"{folder}/"
            if (owner, text) not in seen:
                seen.add((owner, text))
                models.file_system.Directory.create_save(
                    user_id=user, path=text, created_at=CREATED, updated_at=CREATED
                )
        models.file_system.File.create_save(
            user_id=user, path=path, content=content, created_at=CREATED, updated_at=CREATED
        )


def add_phone(models: Any, ids: dict[str, dict[str, int]]) -> None:
    """Add contacts, alarms and text messages."""
    phone, users = models.phone, ids["phone"]
    for owner, contact, relationships in rows.CONTACTS:
        phone.Contact.create_save(
            user_id=users[owner], **rows.PEOPLE[contact], relationships=relationships, created_at=CREATED
        )
    for owner, at, label, enabled in rows.ALARMS:
        phone.Alarm.create_save(
            user_id=users[owner], time=at, label=label, enabled=enabled, snooze_minutes=5, created_at=CREATED
        )
    for sender, receiver, text, day, hour in rows.TEXTS:
        sent = phone.GlobalTextMessage.create_save(
            sender_id=users[sender], receiver_id=users[receiver], message=text, created_at=may(day, hour)
        )
        for person in (sender, receiver):
            phone.UserTextMessage.create_save(
                global_text_message_id=sent.id, user_id=users[person], created_at=may(day, hour)
            )


def add_money(models: Any, ids: dict[str, dict[str, int]]) -> None:
    """Add friendships, payments and payment requests."""
    venmo, users = models.venmo, ids["venmo"]
    for one, other in rows.FRIENDSHIPS:
        venmo.Friendship.create_save(user_id=users[one], friend_id=users[other], created_at=CREATED)
        venmo.Friendship.create_save(user_id=users[other], friend_id=users[one], created_at=CREATED)
    for sender, receiver, amount, text, day in rows.PAYMENTS:
        venmo.Transaction.create_save(
            sender_id=users[sender],
            receiver_id=users[receiver],
            amount=amount,
            description=text,
            created_at=may(day),
            updated_at=may(day),
        )
    for sender, receiver, amount, text, day in rows.REQUESTS:
        venmo.PaymentRequest.create_save(
            sender_id=users[sender],
            receiver_id=users[receiver],
            amount=amount,
            description=text,
            created_at=may(day),
            updated_at=may(day),
        )


def add_music(models: Any, ids: dict[str, dict[str, int]]) -> None:
    """Add artists, songs, playlists, libraries and likes."""
    spotify, users = models.spotify, ids["spotify"]
    for user in users.values():
        spotify.MusicPlayer.create_save(user_id=user, queue_song_ids=[], cursor_position=None)
    artists = {
        name: spotify.Artist.create_save(name=name, genre=genre, created_at=CREATED).id
        for name, genre in rows.ARTISTS.items()
    }
    songs = {
        title: spotify.Song.create_save(
            title=title,
            artist_ids=[artists[artist]],
            duration=seconds,
            genre=genre,
            release_date=datetime(year, 6, 1),
            rating=3,
        ).id
        for title, artist, seconds, genre, year in rows.SONGS
    }
    for owner, title, titles in rows.PLAYLISTS:
        playlist = spotify.Playlist.create_save(title=title, user_id=users[owner], is_public=False, created_at=CREATED)
        for song in titles:
            spotify.PlaylistSong.create_save(playlist_id=playlist.id, song_id=songs[song], added_at=CREATED)
    for owner, song in rows.LIBRARY:
        spotify.UserLibrarySong.create_save(user_id=users[owner], song_id=songs[song], added_at=CREATED)
    for owner, song in rows.LIKES:
        spotify.SongLike.create_save(user_id=users[owner], song_id=songs[song], liked_at=CREATED)


def write_base(apps: list[str]) -> None:
    """Write the API documentation and the base databases of all apps."""
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection

    (DATA / "api_docs" / "standard").mkdir(parents=True)
    models = ModelCollection.load(to_db_home_path=":memory:tiny-base", load_apps=[*apps, "admin"], create_db=True)
    documentation = []
    for app, apis in ApiDocCollection.build(tuple(apps)).items():
        (DATA / "api_docs" / "standard" / f"{app}.json").write_text(
            json.dumps({k: {**v, "canary_string": ""} for k, v in apis.items()})
        )
        for name, doc in apis.items():
            kept = {key: doc[key] for key in ("path", "method", "description", "parameters", "response_schemas")}
            documentation.append(models.api_docs.ApiDoc(app_name_=app, api_name=name, **kept))
    models.api_docs.ApiDoc.save_all(documentation)
    ids = add_people(models)
    add_home(models, ids)
    add_phone(models, ids)
    add_money(models, ids)
    add_music(models, ids)
    models.save(db_home_path=str(DATA / "base_dbs"), app_names=[*apps, "admin"], format="full", save_model_hashes=True)
    models.close()


def write_task(task: Any, apps: list[str]) -> None:
    """Write one task: its specification, its changes to the base databases, its ground truth."""
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import DB_VERSION

    folder = DATA / "tasks" / task.id
    truth = folder / "ground_truth"
    truth.mkdir(parents=True)
    models = ModelCollection.load(
        to_db_home_path=f":memory:tiny-{task.id}", from_db_home_path=str(DATA / "base_dbs"), load_apps=[*apps, "admin"]
    )
    facts = rows.PEOPLE[task.supervisor]
    supervisor = models.supervisor.Supervisor.create_save(**facts, birthday=rows.BIRTHDAYS[task.supervisor], sex=None)
    models.supervisor.Task.create_save(supervisor_id=supervisor.id, instruction=task.instruction)
    for account in rows.accounts(task.supervisor):
        models.supervisor.AccountPassword.create_save(supervisor_id=supervisor.id, **account)
    models.save(db_home_path=str(folder / "dbs"), app_names=[*apps, "admin"], format="changes", save_model_hashes=True)
    models.close()
    specs = {"instruction": task.instruction, "supervisor": facts, "datetime": NOW, "db_version": DB_VERSION}
    (folder / "specs.json").write_text(json.dumps(specs))
    numbers = {"num_apps": len(task.apps), "num_apis": 1, "num_api_calls": 1, "num_solution_code_lines": 1}
    checks = task.all_checks
    documents = {
        "metadata": {"mode": "minimal", "difficulty": task.difficulty, **numbers},
        "public_data": {},
        "private_data": {},
        "answer": task.answer,
        "test_data": [
            {"requirement": c.requirement, "label": "no_op_pass" if c.holds_untouched else "no_op_fail"} for c in checks
        ],
    }
    for name, content in documents.items():
        (truth / f"{name}.json").write_text(json.dumps(content))
    (truth / "evaluation.py").write_text(evaluation(checks))


def evaluation(checks: list[Any]) -> str:
    """The source of a task's `evaluate`."""
    lines = [
        "def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):",
        "    answer = models.end.supervisor.Task.all()[0].answer",
    ]
    for check in checks:
        lines += [f"    with test({check.requirement!r}):", f"        {check.statement}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write everything; the folder must not exist."""
    started = time.monotonic()
    from appworld.apps import get_all_apps

    apps = get_all_apps(skip_admin=True)
    write_base(list(apps))
    for task in catalogue.TASKS.values():
        write_task(task, list(apps))
    (DATA / "datasets").mkdir()
    for split in catalogue.SPLITS:
        (DATA / "datasets" / f"{split}.txt").write_text("".join(f"{task}\n" for task in catalogue.split_ids(split)))
    print(f"{len(catalogue.TASKS)} tasks in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
