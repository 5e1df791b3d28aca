"""Tasks in notes, to-do lists and files."""

from __future__ import annotations

from .task import TinyCheck, TinyTask

_NEW_NOTE = (
    "token = sign_in('simple_note'); apis.simple_note.create_note(title='Stray', content='x', access_token=token)"
)
_NEW_FILE = "apis.file_system.create_file(file_path='~/stray.txt', content='x', access_token=sign_in('file_system'))"

NOTES = [
    TinyTask(
        id="notecount_1",
        split="train",
        difficulty=1,
        apps=("simple_note",),
        instruction="How many of my notes are tagged work?",
        solution=(
            "notes = all_pages(apis.simple_note.search_notes, access_token=sign_in('simple_note'))\n"
            "answer = sum('work' in note['tags'] for note in notes)"
        ),
        answer=4,
        wrong_answer=3,
        spoil=_NEW_NOTE,
    ),
    TinyTask(
        id="notecount_2",
        split="dev",
        difficulty=1,
        apps=("simple_note",),
        instruction="How many notes do I have in total?",
        solution="answer = len(all_pages(apis.simple_note.search_notes, access_token=sign_in('simple_note')))",
        answer=2,
        wrong_answer=5,
        spoil=_NEW_NOTE,
        supervisor="ben",
    ),
    TinyTask(
        id="notedelete_1",
        split="train",
        difficulty=1,
        apps=("simple_note",),
        instruction="Delete my note called Old ideas.",
        solution=(
            "token = sign_in('simple_note')\n"
            "[note] = apis.simple_note.search_notes(query='Old ideas', access_token=token, page_limit=1)\n"
            "apis.simple_note.delete_note(note_id=note['note_id'], access_token=token)"
        ),
        wrong_code=(
            "token = sign_in('simple_note')\n"
            "[note] = apis.simple_note.search_notes(query='Gift ideas', access_token=token, page_limit=1)\n"
            "apis.simple_note.delete_note(note_id=note['note_id'], access_token=token)"
        ),
        spoil=_NEW_FILE,
        changes=("simple_note.Note",),
        checks=(
            TinyCheck(
                "exactly the note Old ideas is gone",
                False,
                "added, updated, removed = models.changed_records('simple_note.Note'); "
                "test.case([note.title for note in [*added, *updated, *removed]], '==', ['Old ideas'])",
            ),
        ),
    ),
    TinyTask(
        id="noteappend_1",
        split="test_normal",
        difficulty=2,
        apps=("simple_note",),
        instruction="Add apples as a last line to my note Groceries.",
        solution=(
            "token = sign_in('simple_note')\n"
            "[note] = apis.simple_note.search_notes(query='Groceries', access_token=token, page_limit=1)\n"
            "text = apis.simple_note.show_note(note_id=note['note_id'], access_token=token)['content']\n"
            "apis.simple_note.update_note(note_id=note['note_id'], content=text + '\\napples', access_token=token)"
        ),
        wrong_code=(
            "token = sign_in('simple_note')\n"
            "[note] = apis.simple_note.search_notes(query='Groceries', access_token=token, page_limit=1)\n"
            "apis.simple_note.update_note(note_id=note['note_id'], content='apples', access_token=token)"
        ),
        spoil=(
            "[other] = apis.simple_note.search_notes(query='Standup', access_token=token, page_limit=1)\n"
            "apis.simple_note.update_note(note_id=other['note_id'], pinned=True, access_token=token)"
        ),
        changes=("simple_note.Note",),
        checks=(
            TinyCheck(
                "Groceries is the only note that was updated",
                False,
                "added, updated, removed = models.changed_records('simple_note.Note'); "
                "test.case([note.title for note in [*added, *updated, *removed]], '==', ['Groceries'])",
            ),
            TinyCheck(
                "its lines are the old ones and apples",
                False,
                "test.case(models.end.simple_note.Note.find_one(title='Groceries').content.split(), '==', "
                "['eggs', 'milk', 'bread', 'apples'])",
            ),
        ),
    ),
    TinyTask(
        id="notecreate_1",
        split="train",
        difficulty=2,
        apps=("simple_note",),
        instruction="Make a note called Week 21 with the text 'call Ben' and the tag work.",
        solution=(
            "apis.simple_note.create_note(title='Week 21', content='call Ben', tags=['work'], "
            "access_token=sign_in('simple_note'))"
        ),
        wrong_code=(
            "apis.simple_note.create_note(title='Week 21', content='call Dov', tags=['work'], "
            "access_token=sign_in('simple_note'))"
        ),
        spoil=_NEW_NOTE,
        changes=("simple_note.Note",),
        checks=(
            TinyCheck(
                "there is one new note, and it is as asked",
                False,
                "added, updated, removed = models.changed_records('simple_note.Note'); "
                "test.case([(note.title, note.content, note.tags) for note in [*added, *updated, *removed]], '==', "
                "[('Week 21', 'call Ben', ['work'])])",
            ),
        ),
    ),
]

_PROJECT = (
    "token = sign_in('todoist')\n"
    "projects = {p['name']: p['project_id'] for p in apis.todoist.show_projects(access_token=token, page_limit=20)}\n"
    "def tasks_of(project, **conditions):\n"
    "    return apis.todoist.show_tasks(project_id=projects[project], access_token=token, "
    "**conditions)['no_section_tasks']\n"
)
_TASKS_CHANGED = "added, updated, removed = models.changed_records('todoist.Task'); "

TODOIST = [
    TinyTask(
        id="todocount_1",
        split="train",
        difficulty=1,
        apps=("todoist",),
        instruction="How many tasks of my project House are not done yet?",
        solution=_PROJECT + "answer = len(tasks_of('House', is_completed=False))",
        answer=3,
        wrong_answer=4,
        spoil="apis.todoist.create_label(name='stray', access_token=token)",
    ),
    TinyTask(
        id="tododone_1",
        split="train",
        difficulty=2,
        apps=("todoist",),
        instruction="Mark all high priority tasks of my project House as done.",
        solution=_PROJECT + "for task in tasks_of('House', priority='high'):\n"
        "    apis.todoist.update_task(task_id=task['task_id'], is_completed=True, access_token=token)",
        wrong_code=_PROJECT + "for task in tasks_of('House'):\n"
        "    apis.todoist.update_task(task_id=task['task_id'], is_completed=True, access_token=token)",
        spoil="apis.todoist.create_project(name='Stray', access_token=token)",
        changes=("todoist.Task",),
        checks=(
            TinyCheck(
                "exactly Fix the tap and Clean the gutter changed, and they are done",
                False,
                _TASKS_CHANGED + "test.case({(t.title, t.is_completed) for t in [*added, *updated, *removed]}, '==', "
                "{('Fix the tap', True), ('Clean the gutter', True)})",
            ),
        ),
    ),
    TinyTask(
        id="todoadd_1",
        split="dev",
        difficulty=2,
        apps=("todoist",),
        instruction="Put a task 'Water the beans' with high priority into my project Garden.",
        solution=_PROJECT
        + "apis.todoist.create_task(project_id=projects['Garden'], title='Water the beans', priority='high', "
        "access_token=token)",
        wrong_code=_PROJECT
        + "apis.todoist.create_task(project_id=projects['House'], title='Water the beans', priority='high', "
        "access_token=token)",
        spoil="apis.todoist.create_label(name='stray', access_token=token)",
        changes=("todoist.Task",),
        checks=(
            TinyCheck(
                "one task was added, to Garden, with high priority",
                False,
                _TASKS_CHANGED
                + "test.case([(t.title, t.project.name, t.priority) for t in [*added, *updated, *removed]], '==', "
                "[('Water the beans', 'Garden', 'high')])",
            ),
        ),
    ),
    TinyTask(
        id="tododue_1",
        split="test_normal",
        difficulty=2,
        apps=("todoist",),
        instruction="Which unfinished task of my project House is due first? Answer with its title.",
        solution=_PROJECT + "tasks = tasks_of('House', is_completed=False)\n"
        "answer = min(tasks, key=lambda task: task['due_date'])['title']",
        answer="Fix the tap",
        wrong_answer="Buy bulbs",
        spoil=_NEW_FILE,
    ),
]

FILES = [
    TinyTask(
        id="filecount_1",
        split="train",
        difficulty=1,
        apps=("file_system",),
        instruction="How many jpg pictures are in my folder ~/pictures?",
        solution=(
            "paths = apis.file_system.show_directory(directory_path='~/pictures', "
            "access_token=sign_in('file_system'))\n"
            "answer = sum(path.endswith('.jpg') for path in paths)"
        ),
        answer=2,
        wrong_answer=3,
        spoil=_NEW_FILE,
    ),
    TinyTask(
        id="filewrite_1",
        split="train",
        difficulty=1,
        apps=("file_system",),
        instruction="Create the file ~/docs/todo.txt with the text 'mow the lawn'.",
        solution=(
            "apis.file_system.create_file(file_path='~/docs/todo.txt', content='mow the lawn', "
            "access_token=sign_in('file_system'))"
        ),
        wrong_code="apis.file_system.create_file(file_path='~/todo.txt', content='mow the lawn', "
        "access_token=sign_in('file_system'))",
        spoil=_NEW_FILE,
        changes=("file_system.Directory", "file_system.File"),
        checks=(
            TinyCheck(
                "exactly this file is new, with this text",
                False,
                "added, updated, removed = models.changed_records('file_system.File'); "
                "test.case([(f.path, f.content.strip()) for f in [*added, *updated, *removed]], '==', "
                "[('/home/ada/docs/todo.txt', 'mow the lawn')])",
            ),
        ),
    ),
    TinyTask(
        id="filedelete_1",
        split="test_challenge",
        difficulty=3,
        apps=("file_system",),
        instruction="Delete all pictures of my folder ~/pictures that are not jpg.",
        solution=(
            "token = sign_in('file_system')\n"
            "for path in apis.file_system.show_directory(directory_path='~/pictures', entry_type='files', "
            "access_token=token):\n"
            "    if not path.endswith('.jpg'):\n"
            "        apis.file_system.delete_file(file_path=path, access_token=token)"
        ),
        wrong_code=(
            "token = sign_in('file_system')\n"
            "for path in apis.file_system.show_directory(directory_path='~/pictures', entry_type='files', "
            "access_token=token):\n"
            "    apis.file_system.delete_file(file_path=path, access_token=token)"
        ),
        spoil="apis.file_system.delete_file(file_path='~/docs/list.txt', access_token=token)",
        changes=("file_system.Directory", "file_system.File"),
        checks=(
            TinyCheck(
                "exactly cat.png is gone",
                False,
                "added, updated, removed = models.changed_records('file_system.File'); "
                "test.case([f.path for f in [*added, *updated, *removed]], '==', ['/home/ada/pictures/cat.png'])",
            ),
        ),
    ),
]

TASKS = [*NOTES, *TODOIST, *FILES]
