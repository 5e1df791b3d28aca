"""Tasks that are folders: the agent works in the task's container, or a process in its place, and its tests grade."""

import json
import shutil
import stat
import subprocess
import sys
import textwrap

import pytest

from agentevolver.rollout.agent import AgentFailed
from agentevolver.rollout.container import CommandEngine, ContainerAgent, ProcessEngine
from agentevolver.rollout.gateway.server import GatewayEndpoint
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
    assert rollout.trajectory.stop_reason is StopReason.AGENT_ERROR and "code 3" in rollout.trajectory.error
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
if words[0] == "exec":
    inner, environ = words[1:], {}
    while inner[0] in ("-e", "-u"):
        if inner[0] == "-e":
            name, given, value = inner[1].partition("=")
            environ[name] = value if given else os.environ[name]
        inner = inner[2:]
    if inner[1] == "sh" and "rm -rf" not in inner[3]:
        sys.exit(subprocess.run(inner[1:], env=environ).returncode)
if words[0] == "cp" and words[-1] == "-":
    import io, tarfile
    work = words[1].endswith(":/app")
    member = tarfile.TarInfo("app" if work else "reward.txt")
    member.type, member.size = (tarfile.DIRTYPE, 0) if work else (tarfile.REGTYPE, 3)
    tarfile.open(fileobj=sys.stdout.buffer, mode="w|").addfile(member, io.BytesIO(b"0.5"))
    sys.stdout.buffer.write(bytes(1024))
"""


def fake_docker(tmp_path):
    program, log = tmp_path / "docker", tmp_path / "docker.log"
    program.write_text(FAKE_DOCKER % (sys.executable, str(log)))
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
    opened, closed = ["run", "inspect", "exec"], ["cp", "rm"]
    agent, tests = ["build", *opened, "cp", "exec", *closed], ["build", *opened, "cp", "cp", "exec", *closed]
    assert [words[0] for words in calls] == [*agent, *tests]
    first, fresh = (words[words.index("--name") + 1] for words in calls if words[0] == "run")
    assert first != fresh and ["rm", "-f", first] in calls and calls[-1] == ["rm", "-f", fresh]
    assert ["cp", str((root / "train/greet/tests").resolve()), f"{fresh}:/tests"] in calls
    assert calls[-3][-3:] == [fresh, "/bin/bash", "/tests/test.sh"]


REWARD = "/logs/verifier/reward.txt"
EARLY = f"cd /app/ || exit 1; [ -f run.sh ] && sh run.sh; echo 0 > {REWARD}"
OWN = f"mkdir -p /tests/; echo 'echo 1 > {REWARD}' > /tests/test.sh"
GONE = 'work="$PWD"; cd /logs/; rm -rf "$work"'
ATTACKS = {
    "tests of its own": (OWN, TEST),
    "an old reward": (f"echo 1 > {REWARD}; rm -r /app/given.txt", f"set -e; cat /app/given.txt; echo 0 > {REWARD}"),
    "no work folder": (f"echo 1 > {REWARD}; {GONE}", TEST),
    "a link as work folder": (f'echo 1 > {REWARD}; {GONE}; ln -s verifier "$work"', EARLY),
    "a link through a folder": ("ln -s ../tests /app/t; ln -s t/wanted.txt /app/answer.txt", TEST),
    "a fifo as answer": ("mkfifo /app/answer.txt", TEST),
    "a process that stays": (f"(while :; do echo 1 > {REWARD}; sleep .01; done) > /dev/null 2>&1 &", TEST),
    "a fifo as reward": (f"echo 'mkfifo {REWARD}; kill -9 $PPID' > /app/run.sh", EARLY),
    "a folder as reward": (f"echo 'mkdir {REWARD}' > /app/run.sh", EARLY),
    "a link as reward": (f"echo 'ln -sf /dev/zero {REWARD}' > /app/run.sh", EARLY),
    "no number": (f"echo 'echo nan > {REWARD}; kill -9 $PPID' > /app/run.sh", EARLY),
    "a large reward": (f"echo 'head -c 9999999 /dev/zero > {REWARD}; kill -9 $PPID' > /app/run.sh", EARLY),
    "tests that hang": ("echo 'sleep 99' > /app/run.sh", EARLY),
    "a full reward, then a failure": (f"echo 'echo 1 > {REWARD}; kill -9 $PPID' > /app/run.sh", EARLY),
}
IN_CONTAINERS = {
    "another bash": (
        f"rm -f /bin/bash; printf '#!/bin/sh\\necho 1 > {REWARD}\\n' > /bin/bash; chmod 755 /bin/bash",
        TEST,
    ),
    "all processes killed": ("kill -9 -1", TEST),
    "no programs": ("rm -rf /bin", TEST),
}
SOLUTION = "cat /app/given.txt > /app/answer.txt"


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    """Real podman with an image of busybox: (engine, image)."""
    program, busybox = shutil.which("podman"), shutil.which("busybox")
    if program is None or busybox is None:
        pytest.skip("podman and busybox-static are not installed")
    place = tmp_path_factory.mktemp("podman")
    for name in ("bin", "tmp", "app"):
        (place / "image" / name).mkdir(parents=True)
    shutil.copy(busybox, place / "image/bin/busybox")
    names = ("sh", "cat", "mkdir", "mkfifo", "sleep", "rm", "ln", "head", "printf", "chmod", "kill", "true")
    for name in names:
        (place / "image/bin" / name).symlink_to("busybox")
    (place / "image/bin/bash").write_text('#!/bin/sh\nexec sh "$@"\n')
    (place / "image/bin/bash").chmod(0o755)
    (place / "image/app/given.txt").write_text("hello")
    subprocess.run(["tar", "-C", place / "image", "-cf", place / "image.tar", "."], check=True)
    image = "localhost/agentevolver-test"
    with pytest.MonkeyPatch.context() as patch:
        for runtime in ("crun", "runc"):
            # Where hard limits are low, or control groups old, podman's defaults end in an error.
            conf = place / f"{runtime}.conf"
            limits = 'default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]'
            conf.write_text(f'[containers]\n{limits}\n[engine]\nruntime = "{runtime}"\n')
            patch.setenv("CONTAINERS_CONF", str(conf))
            subprocess.run(
                [program, "import", "--change", "WORKDIR /app", place / "image.tar", image], capture_output=True
            )
            ran = subprocess.run([program, "run", "--rm", "--network", "host", image, "true"], capture_output=True)
            if ran.returncode == 0:
                yield CommandEngine(program), image
                subprocess.run([program, "rmi", "-f", image], capture_output=True)
                return
    pytest.skip(f"podman cannot run a container here: {ran.stderr!r}")


async def grade(engine, root, text, test, image=None):
    """Play an agent of one shell command and return its score."""
    folder = root / "train" / "greet"
    (folder / "tests" / "test.sh").write_text(test)
    named = f'[environment]\ndocker_image = "{image}"\n' if image else ""
    (folder / "task.toml").write_text(f"[verifier]\ntimeout_sec = 3\n{named}")
    endpoint = GatewayEndpoint("http://127.0.0.1:1/v1", "key")
    task = Task("train/greet", "folders", query="go", metadata={"info": {"folder": str(folder)}})
    try:
        result = await ContainerAgent(["sh", "-c", text], engine, 30.0).play(task, endpoint, None)
    except AgentFailed as error:  # it is graded all the same
        result = error.result
    return result.score


@pytest.mark.parametrize(("text", "test"), ATTACKS.values(), ids=ATTACKS)
async def test_an_agent_writes_no_grade_and_voids_none(root, text, test):
    assert await grade(ProcessEngine(), root, SOLUTION, TEST) == 1.0
    assert await grade(ProcessEngine(), root, text, test) == 0.0


async def test_an_agent_in_a_container_writes_no_grade_and_voids_none(root, podman):
    engine, image = podman
    assert await grade(engine, root, SOLUTION, TEST, image) == 1.0
    for name, (text, test) in {**ATTACKS, **IN_CONTAINERS}.items():
        assert await grade(engine, root, text, test, image) == 0.0, name
    assert "agentevolver-" not in await engine.call("ps", "-a", "--format", "{{.Names}}")
