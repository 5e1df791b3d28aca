"""Readers of users' files refuse what they cannot read with an error of the project's own, and never by accident."""

import copy
import json

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.evaluation.report import Evaluation, read_evaluation
from agentevolver.evaluation.tables import read_table
from agentevolver.llm.message_logs import LogError, read_logs
from agentevolver.trainer.job.cold_start import choose
from agentevolver.utils.errors import UsageError
from experience_manager.dumps import DumpError, read_dump
from experience_manager.guide import strip
from task_manager.profile import ProfileError, load_profile
from task_manager.tasks import read_objectives, read_tasks
from tests.trajectories import trajectory

CALL = {"id": "c", "type": "function", "function": {"name": "go", "arguments": "{}"}}
SAID = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [{"text": "on"}], "tool_calls": [CALL]}]
TASK = {"task_id": "t", "env_type": "e", "query": "q", "ground_truth": "a", "metadata": {"split": "train"}}
LOG = {"messages": SAID, "tools": [{"name": "go"}], "score": 1, "task_id": "t", "metadata": {"a": 1}}
CHAT = {"request": {"messages": SAID[:1]}, "response": {"choices": [{"message": SAID[1]}]}, "success": True}
RECORD = json.loads(json.dumps(trajectory().to_dict()))
DUMPED = {
    "when_to_use": "w",
    "content": "c",
    "workspace_id": "w",
    "memory_id": "m",
    "score": 0.5,
    "metadata": {"a": [1]},
}
EVALUATION = Evaluation("n", "e", "s", 1, {"t": [1.0]}, {"t": [True]}, {"t": [3]}, {}, {}).to_dict()
WISHES = {"num_entities": 1, "num_opts": 1, "relation_difficulty": 1}
ENTITIES = [{"name": "x", "description": "d", "attrs": {"a": "b"}, "opts": []}]
PROFILE = {"name": "shop", "background": "b", "entities": ENTITIES, "task_preference": WISHES}
CONDITIONS = {"a": {"overrides": {"x": 1}}, "b": {"overrides": {"x": 2}}}
TABLE = {"project": "t", "experiment": "table.yaml", "seeds": [1], "conditions": CONDITIONS}


def imitated(path):
    for one in choose(read_logs([path]), 0.5)[0]:
        strip(one.messages, "injected")


READERS = [
    *((record, imitated, LogError) for record in (LOG, CHAT, RECORD)),
    (TASK, read_tasks, ValueError),
    ({"task": TASK, "confidence": 1.0}, read_objectives, ValueError),
    (DUMPED, read_dump, DumpError),
    (EVALUATION, read_evaluation, UsageError),
    (PROFILE, load_profile, ProfileError),
    (TABLE, read_table, UsageError),
]
JUNK = st.sampled_from([None, True, -1, 2**70, 1e308, "", "x", "\x00", [], [3], [[]], {}, {"a": {}}, [{"role": 3}]])


def places(value, here=()):
    yield here
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*here, key))


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_a_file_is_read_or_refused(tmp_path_factory, data):
    valid, read, refusal = data.draw(st.sampled_from(READERS))
    changed = copy.deepcopy({"all": valid})
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from([place for place in places(changed) if place]))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if data.draw(st.booleans()) or len(path) == 1:
            inner[path[-1]] = copy.deepcopy(data.draw(JUNK))
        else:
            del inner[path[-1]]
    file = tmp_path_factory.mktemp("file") / "table.yaml"
    file.write_text(json.dumps(changed["all"]) if read is not read_table else yaml.safe_dump(changed["all"]))
    try:
        read(file)
    except refusal as error:
        assert changed["all"] != valid and str(file) in str(error)
