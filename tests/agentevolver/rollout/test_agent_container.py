"""Tasks that are folders: the agent works in the task's container, or a process in its place, and its tests grade."""

import json
import stat
import sys
import textwrap

import pytest

from agentevolver.rollout.container import CommandEngine, ContainerAgent, ProcessEngine
from agentevolver.types import Outcome, StopReason, Task
from env_service.environments.task_folders.env import TaskFoldersEnv
from tests.agentevolver.rollout.agents import EchoEnv, roll
from tests.agentevolver.rollout.test_agent_command import HEAD, SEEN, nothing_is_left  # noqa: F401

pytestmark = pytest.mark.service
TEST = """
mkdir -p /logs/verifier
if [ "$(cat /app/answer.txt)" = "$(cat /tests/wanted.txt)" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""


@pytest.fixture
def root(tmp_path):
    task = tmp_path / "tasks" / "train" / "greet"
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "instruction.md").write_text("Write what given.txt says into answer.txt.\n")
    (task / "environment" / "Dockerfile").write_text("FROM debian\nCOPY given.txt /app/\nWORKDIR /app\n")
    (task / "environment" / "given.txt").write_text("hello")
    (task / "tests" / "test.sh").write_text(TEST)
    (task / "tests" / "wanted.txt").write_text("hello")
    (task / "task.toml").write_text('version = "1.0"\n[verifier]\ntimeout_sec = 20.0\n')
    return tmp_path / "tasks"


class FolderEnv(EchoEnv):
    """The environment of the folders, in this process."""

    def __init__(self, root):
        super().__init__()
        self.root = root

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        self.open.add(instance_id)
        return TaskFoldersEnv(task_id, instance_id, {"root": str(self.root)}).get_init_state()


def play(chatml, root, tmp_path, text, engine=None, timeout_s=60.0, **options):
    program = tmp_path / "agent.py"
    program.write_text(HEAD + textwrap.dedent(text))
    agent = ContainerAgent([sys.executable, "-S", str(program), "{query}"], engine or ProcessEngine(), timeout_s)
    env = FolderEnv(root)
    rollout = roll(
        chatml,
        agent,
        env,
        task=Task("train/greet", "folders"),
        serve={"world": False, "timeout_s": timeout_s, **options},
    )
    assert not env.open
    return rollout


SOLVE = """
say([{"role": "user", "content": sys.argv[1]}])
assert sys.argv[1] == task["query"] == "Write what given.txt says into answer.txt."
open("answer.txt", "w").write(open("given.txt").read())
"""


@pytest.mark.parametrize(("text", "score"), [(SOLVE, 1.0), (SOLVE.replace('open("given.txt").read()', '"no"'), 0.0)])
def test_the_tests_of_the_task_grade(chatml, root, tmp_path, text, score):
    rollout = play(chatml, root, tmp_path, text)
    trajectory = rollout.trajectory
    assert trajectory.error == "" and trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.outcome == Outcome(score, score == 1.0, "tests/test.sh ended with code 0")
    assert len(rollout.samples) == 1 and trajectory.messages[0]["content"].startswith("Write what")


def test_an_agent_that_fails_is_no_grade_unless_that_is_wanted(chatml, root, tmp_path):
    failing = f"{SOLVE}\nsys.exit(3)"
    rollout = play(chatml, root, tmp_path, failing)
    assert rollout.trajectory.stop_reason is StopReason.AGENT_ERROR and rollout.trajectory.outcome is None
    assert "code 3" in rollout.trajectory.error
    graded = play(chatml, root, tmp_path, failing, train_errors=True)
    assert graded.trajectory.outcome.score == 1.0


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("echo nonsense; exit 4", "ended with code 4 and wrote None"),
        ("mkdir -p /logs/verifier; echo 7 > /logs/verifier/reward.txt", "expected a number in 0..1"),
        ("sleep 60", "did not end within 1 s"),
    ],
)
def test_tests_that_say_nothing_are_a_grading_error(chatml, root, tmp_path, test, message):
    (root / "train" / "greet" / "tests" / "test.sh").write_text(test)
    (root / "train" / "greet" / "task.toml").write_text("[verifier]\ntimeout_sec = 1\n")
    rollout = play(chatml, root, tmp_path, SOLVE)
    assert rollout.trajectory.stop_reason is StopReason.GRADING_ERROR and rollout.trajectory.attempts == 1
    assert message in rollout.trajectory.error


FAKE_DOCKER = """#!%s
import json, os, subprocess, sys
log, words = %r, sys.argv[1:]
open(log, "a").write(json.dumps(words) + "\\n")
if words[0] == "build" and %r:
    sys.exit("no such base image")
if words[0] == "exec":
    inner, environ = words[1:], {}
    while inner[0] in ("-e", "-u"):
        if inner[0] == "-e":
            name, given, value = inner[1].partition("=")
            environ[name] = value if given else os.environ[name]
        inner = inner[2:]
    if inner[1] == "cat":
        print("0.5")
    elif inner[1] == "sh":
        sys.exit(subprocess.run(inner[1:], env=environ).returncode)
"""


def fake_docker(tmp_path, fails=False):
    program, log = tmp_path / "docker", tmp_path / "docker.log"
    program.write_text(FAKE_DOCKER % (sys.executable, str(log), fails))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return CommandEngine(str(program)), log


def test_a_container_engine_is_asked_for_the_image_the_agent_and_the_tests_and_nothing_stays(chatml, root, tmp_path):
    engine, log = fake_docker(tmp_path)
    asking = tmp_path / "ask.py"
    asking.write_text(
        f"import json, os, subprocess, sys, urllib.request as web\n{SEEN}\n"
        "body = json.dumps({'messages': [{'role': 'user', 'content': 'hi'}]}).encode()\n"
        "url, kind = os.environ['OPENAI_BASE_URL'] + '/chat/completions', {'Content-Type': 'application/json'}\n"
        "web.urlopen(web.Request(url, body, kind))\n"
    )
    agent = ContainerAgent(["sh", "-c", f"{sys.executable} -S {asking}"], engine, 60.0)
    rollout = roll(chatml, agent, FolderEnv(root), task=Task("train/greet", "folders"), serve={"world": False})
    assert rollout.trajectory.error == "" and rollout.trajectory.outcome.score == 0.5 and len(rollout.samples) == 1
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [words[0] for words in calls] == ["build", "run", "exec", "cp", "exec", "cp", "exec", "exec", "rm"]
    name = calls[1][calls[1].index("--name") + 1]
    assert calls[5] == ["cp", str((root / "train/greet/tests").resolve()), f"{name}:/tests"]
    assert calls[6][-2:] == ["bash", "/tests/test.sh"] and calls[-1] == ["rm", "-f", name]


def test_the_environment_lists_folders_and_reads_no_others(root, tmp_path):
    params = {"root": str(root)}
    assert TaskFoldersEnv.get_query_list("train", params) == ["train/greet"]
    (tmp_path / "instruction.md").write_text("secret")
    for task_id in ("train/none", "..", "../../etc"):
        with pytest.raises(ValueError, match="no task"):
            TaskFoldersEnv(task_id, "i", params)
    with pytest.raises(ValueError, match="is no folder: say where the tasks are"):
        TaskFoldersEnv("train/greet", "i", {"root": str(tmp_path / "none")})
    with pytest.raises(ValueError, match="agent_container"):
        TaskFoldersEnv("train/greet", "i", params).evaluate()
