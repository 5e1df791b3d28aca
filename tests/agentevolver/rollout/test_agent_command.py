"""A program of the user's plays rollouts: told where the policy and its environment are, and gone when they end."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from agentevolver.rollout.command import CommandAgent
from agentevolver.types import Outcome, StopReason
from agentevolver.utils import lifeline
from tests.agentevolver.rollout.agents import EchoEnv, roll

pytestmark = pytest.mark.service

# What every program below begins with: the standard library alone, as any language has it.
HEAD = """
import json, os, subprocess, sys, time, urllib.error, urllib.request
def send(url, body=None, key="AGENTEVOLVER_NONE"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))
def say(messages):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return send(url, {"model": "policy", "messages": messages})["choices"][0]["message"]["content"]
world, result = os.environ.get("AGENTEVOLVER_WORLD_URL"), os.environ["AGENTEVOLVER_RESULT_URL"]
task = json.load(open(os.environ["AGENTEVOLVER_TASK"]))
"""
# Another user's view of every command line, while the agent runs.
SEEN = """
user = 65534 if os.getuid() == 0 else None
command = ["sh", "-c", "cat /proc/[0-9]*/cmdline"]
seen = subprocess.run(command, capture_output=True, user=user, group=user, cwd="/").stdout.decode(errors="replace")
assert sys.argv[0] in seen and os.environ["OPENAI_API_KEY"] not in seen, "the key is in a command line"
"""
REACT = """
messages = send(world + "/messages")["messages"]
assert messages == task["messages"] and send(world + "/tools") == {"tools": []}
while True:
    action = say(messages)
    answer = send(world + "/step", {"action": action})
    if answer["over"]:
        break
    messages += [{"role": "assistant", "content": action}, *answer["messages"]]
"""


def program(tmp_path, text):
    """Return the words of a program."""
    path = tmp_path / "agent.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return [sys.executable, "-S", str(path)]


def play(chatml, tmp_path, text, env=None, *, words=(), agent=None, **options):
    return roll(chatml, agent or CommandAgent([*program(tmp_path, text), *words]), env, **options)


def gone(pids, seconds=5.0):
    """Whether none of these processes runs (any more, after a while)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Folders, processes and descriptors are what they were."""
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    open_files = len(os.listdir("/proc/self/fd"))
    yield
    assert list(folders.iterdir()) == []
    assert gone({child.pid for child in psutil.Process().children(recursive=True)} - before)
    assert len(os.listdir("/proc/self/fd")) <= open_files + 2


def test_the_built_in_flow_as_a_program_gives_the_same_ids(chatml, tmp_path):
    flow, rollout = roll(chatml, None), play(chatml, tmp_path, REACT)
    assert rollout.trajectory.error == "" and rollout.trajectory.stop_reason is StopReason.FINISHED
    assert [s.response_ids for s in rollout.samples] == [s.response_ids for s in flow.samples]
    assert [s.log_probs for s in rollout.samples] == [s.log_probs for s in flow.samples]
    assert [step.reward for step in rollout.trajectory.steps] == [step.reward for step in flow.trajectory.steps]


def test_words_and_variables_say_where_everything_is(chatml, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("AGENTEVOLVER_SECRETS", "/nowhere")
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    monkeypatch.setenv("MY_SETTING", "kept")
    found = tmp_path / "found.json"
    text = f"""
    say(task["messages"])
    headers = {{"x-api-key": os.environ["OPENAI_API_KEY"]}}
    urllib.request.urlopen(urllib.request.Request(sys.argv[2] + "/models", headers=headers), timeout=30).close()
    {textwrap.indent(SEEN, "    ").strip()}
    json.dump({{"words": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd()}}, open({str(found)!r}, "w"))
    """
    words = ["{query}", "{base_url}", "{anthropic_base_url}", "{model}", "{mcp_url}", "{task_file}"]
    rollout = play(chatml, tmp_path, text, words=words)
    assert rollout.trajectory.error == ""
    told = json.loads(found.read_text())
    environ, (query, base, root, model, mcp, task) = told["environ"], told["words"]
    assert query == "go" and base == f"{root}/v1" and mcp == f"{root}/mcp" and model == "policy"
    key, secret_root = environ["OPENAI_API_KEY"], f"{root}/r/{environ['OPENAI_API_KEY']}"
    assert environ["OPENAI_BASE_URL"] == environ["OPENAI_API_BASE"] == f"{secret_root}/v1"
    assert environ["ANTHROPIC_BASE_URL"] == secret_root and environ["ANTHROPIC_API_KEY"] == key
    assert environ["AGENTEVOLVER_TASK"] == task and Path(task).parent == Path(told["cwd"]) == Path(environ["HOME"])
    assert environ["MY_SETTING"] == "kept" and "127.0.0.1" in environ["no_proxy"]
    assert not {"WANDB_API_KEY", "AGENTEVOLVER_SECRETS", "RAY_ADDRESS"} & environ.keys()


@pytest.mark.parametrize(
    ("posted", "outcome"),
    [("0.5", Outcome(0.5, False)), ('{"score": 1, "reason": "solved"}', Outcome(1.0, True, "solved"))],
)
def test_the_posted_number_is_the_grade_without_a_world(chatml, tmp_path, posted, outcome):
    text = f"""
    say([{{"role": "user", "content": task["query"]}}])
    assert send(result, json.loads({posted!r})) == {{"ok": True}}
    """
    rollout = play(chatml, tmp_path, text, serve={"world": False})
    assert rollout.trajectory.error == "" and rollout.trajectory.outcome == outcome


# ---- faults ----


def test_a_program_that_fails_is_an_agent_error_with_what_it_printed(chatml, tmp_path):
    text = """
    say(task["messages"])
    print("x" * 100_000)
    print("key", os.environ["OPENAI_API_KEY"], file=sys.stderr)
    sys.exit("it went wrong")
    """
    env = EchoEnv()
    rollout = play(chatml, tmp_path, text, env)
    trajectory = rollout.trajectory
    assert trajectory.stop_reason is StopReason.AGENT_ERROR and trajectory.outcome is None and not rollout.samples
    assert "ended with code 1" in trajectory.error and trajectory.error.endswith("it went wrong")
    assert "key ***" in trajectory.error and len(trajectory.error) < 5_000
    assert trajectory.attempts == 1 and not env.open


FAMILY = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
daemon = subprocess.run([sys.executable, "-S", "-c",
    "import os, subprocess, sys;"
    "print(subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'],"
    "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"],
    capture_output=True, text=True).stdout
json.dump([os.getpid(), child.pid, int(daemon)], open(sys.argv[1] + ".tmp", "w"))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
"""


def test_a_program_that_hangs_is_killed_with_all_that_it_started(chatml, tmp_path):
    told = tmp_path / "pids"
    env = EchoEnv()
    rollout = play(chatml, tmp_path, f"{FAMILY}\ntime.sleep(600)", env, words=[str(told)], serve={"timeout_s": 2.0})
    assert rollout.trajectory.stop_reason is StopReason.AGENT_ERROR and "not end within 2 s" in rollout.trajectory.error
    pids = json.loads(told.read_text())
    assert len(pids) == 3 and gone(pids) and not env.open


def test_what_a_program_leaves_behind_at_its_own_end_is_killed_too(chatml, tmp_path):
    told = tmp_path / "pids"
    rollout = play(chatml, tmp_path, f"{FAMILY}\nsay(task['messages'])", words=[str(told)])
    assert rollout.trajectory.stop_reason is StopReason.FINISHED
    assert gone(json.loads(told.read_text()))


@pytest.mark.parametrize("killed", ["the starter", "the lifeline"])
def test_a_program_goes_with_the_process_that_started_it_and_with_its_lifeline(tmp_path, killed):
    told = tmp_path / "pid"
    words = lifeline.command(["sh", "-c", f"echo $$ > {told}; exec sleep 600"])
    if killed == "the starter":
        starting = f"import subprocess, time; subprocess.Popen({words!r}, stdin=subprocess.PIPE); time.sleep(600)"
        words = [sys.executable, "-S", "-c", starting]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not (told.exists() and told.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    process.stdin.close()
    assert gone([int(told.read_text())])
