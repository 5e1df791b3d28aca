"""Prompts of the agent: the opening messages and the observations."""

from __future__ import annotations

from string import Template
from typing import Any

from env_service.base import Message
from env_service.environments.appworld.actions import TOOL_NAME

_SYSTEM = Template("""\
You are an assistant who gets everyday jobs done by writing Python. You act for your supervisor, $first_name \
$last_name (email \
$email, phone number $phone_number), who will not answer questions: decide everything yourself.

# How it works
$you_act The session is \
like a notebook: \
variables, functions and imports of earlier messages stay. Only what you `print` is shown. The date and time in this \
world is \
$datetime.

$how_to_write

# The apps
Everything is done through one object, `apis`: `apis.<app_name>.<api_name>(argument=value, ...)`. These are the apps:
$apps

You do not know the APIs by heart, so look them up before you use them. There are three calls for that:
```python
print(apis.api_docs.show_app_descriptions())
print(apis.api_docs.show_api_descriptions(app_name="todoist"))
print(apis.api_docs.show_api_doc(app_name="todoist", api_name="show_projects"))
```
The first lists the apps, the second the APIs of one app, and the third tells the arguments and the answer of one API.

# Signing in
Most APIs want an access token, which the `login` API of the same app gives. The supervisor app knows the passwords; \
the user name \
is the email address, except for the phone app, which wants the phone number:
```python
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
todoist = apis.todoist.login(username="$email", password=passwords["todoist"])["access_token"]
print(apis.todoist.show_projects(access_token=todoist))
```

# Rules
1. Work in small steps: one or two calls, look at the output, then go on. A call that fails raises an exception with \
the reason in it.
2. Read the documentation of an API before its first use. Do not guess arguments, and do not make up ids, tokens, \
names or amounts.
3. Answers with many entries come in pages (`page_index` counts from 0, `page_limit` has a maximum). Go through all \
pages before you \
say how many, which or none.
4. The supervisor's own data (addresses, cards, passwords) is in the supervisor app; friends, family and colleagues \
are contacts in \
the phone app. "My account", "my notes" and the like mean the supervisor's.
5. Files are those of the file_system app. The disk of this computer, the network and most modules are closed to you.
6. Do what was asked and nothing else: what you change beyond that counts as a mistake.
7. When you are done, call `apis.supervisor.complete_task()`. If the task asks a question, pass the bare answer, a \
number, a name, a \
word: `apis.supervisor.complete_task(answer=3)`. If it cannot be done, call \
`apis.supervisor.complete_task(status="fail")`. After \
this call the episode is over.
""")

_FENCED = {
    "you_act": "You write a message, the Python code in it is executed, and you get its output as the next message.",
    "how_to_write": """\
Put code into blocks fenced like this:
```python
print("hello")
```
All such blocks of a message are executed in their order; after one that fails, the rest of the message is not \
executed. Text \
outside the blocks is for your own thoughts.""",
    "reply": "Reply with code only; it",
}
_NATIVE = {
    "you_act": "You call the tool with Python code, it is executed, and you get its output.",
    "how_to_write": """\
All calls of a message are executed in their order; after one that fails, the rest of the message is not executed. \
Text beside the calls is for your own thoughts.""",
    "reply": "Call the tool with the code; it",
}

_SIMPLE = Template("""\
Write Python code that does the task for $first_name $last_name (email $email, phone number $phone_number). $reply \
is executed in a notebook-like session whose output you get back. Call apps as apis.<app_name>.<api_name>(...). Apps: \
$app_names.
Look up: apis.api_docs.show_api_descriptions(app_name=...), apis.api_docs.show_api_doc(app_name=..., api_name=...). \
Passwords: \
apis.supervisor.show_account_passwords(). Only printed text is shown. At the end call \
apis.supervisor.complete_task(answer=...), \
without answer if none is asked for.""")

EXPLORE = """\
There is no task this time. Explore the world of your supervisor: find out which apps and APIs there are, sign in, \
look at the data, \
and try out what can be done with it, also across apps. Call apis.supervisor.complete_task() when you have seen \
enough."""

_HOW_TO = """\
Nothing was executed: $problem Put Python code into a block that starts with ```python and ends with ```. If the task \
is done, call \
apis.supervisor.complete_task() in such a block."""
_HOW_TO_SIMPLE = "Nothing was executed: $problem Reply with Python code."
_HOW_TO_TOOL = "Nothing was executed: $problem"
NO_CALL = """\
Nothing was executed: your message holds no call of the tool. If the task is done, call \
apis.supervisor.complete_task() in its code."""


def tool_schema() -> dict[str, Any]:
    code = {"type": "string", "description": "The code to execute; it calls apps as apis.<app_name>.<api_name>(...)."}
    function = {
        "name": TOOL_NAME,
        "description": "Execute Python code in the session. What it prints is shown, or the exception it raises.",
        "parameters": {"type": "object", "properties": {"code": code}, "required": ["code"]},
    }
    return {"type": "function", "function": function}


def opening(
    facts: dict[str, Any], *, is_simple: bool, with_prompt: bool, is_open_query: bool, native: bool = False
) -> list[Message]:
    """Return the opening messages; `facts` come from `Episode.describe`. `native`: without rules for code in
    messages."""
    question: Message = {"role": "user", "content": EXPLORE if is_open_query else facts["instruction"]}
    if not with_prompt:
        return [question]
    apps: dict[str, str] = facts["app_descriptions"]
    template = _SIMPLE if is_simple else _SYSTEM
    text = template.substitute(
        facts["supervisor"],
        datetime=facts["datetime"],
        apps="\n".join(f"- {name}: {description}" for name, description in apps.items()),
        app_names=", ".join(apps),
        **(_NATIVE if native else _FENCED),
    )
    return [{"role": "system", "content": text}, question]


def nothing_executed(problems: list[str], *, is_simple: bool, is_tool_call: bool) -> str:
    text = _HOW_TO_TOOL if is_tool_call else _HOW_TO_SIMPLE if is_simple else _HOW_TO
    return Template(text).substitute(problem=" ".join(problems))


def executed(outputs: list[str], total: int, problems: list[str], *, is_simple: bool) -> str:
    """Return the observation for the outputs of the first blocks out of `total`."""
    shown = [output.strip("\n") for output in outputs]
    if not is_simple:
        heads = (
            ["Output:"]
            if total == 1
            else [f"Output of block {number} of {total}:" for number in range(1, len(shown) + 1)]
        )
        shown = [f"{head}\n```\n{output}\n```" for head, output in zip(heads, shown, strict=True)]
    return "\n\n".join([*shown, *problems])
