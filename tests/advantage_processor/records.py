from agentevolver.types import Trajectory


def record(
    group="g",
    rollout=0,
    flags=None,
    score=1.0,
    steps=3,
    *,
    rewards=None,
    actions=None,
    observations=None,
    synthetic=False,
    **extra,
):
    """A trajectory; `flags` like "GBG" makes it a labelled one of that many steps, `score` None a failed
    one."""
    count = len(flags) if flags is not None else len(actions) if actions is not None else steps
    actions = actions or [f"act {i}" for i in range(count)]
    observations = observations or [f"saw {i}" for i in range(count)]
    rewards = rewards or [0.0] * count
    messages = [{"role": "system", "content": "site k4"}, {"role": "user", "content": "delete the note hat"}]
    for action, observation in zip(actions, observations, strict=True):
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    data = {
        "task": {
            "task_id": f"t-{group}",
            "env_type": "pocket",
            "open_query": synthetic,
            "query": None,
            "evaluator": "env",
            "metadata": {},
        },
        "group_id": group,
        "rollout_id": rollout,
        "messages": messages,
        "steps": [
            {"index": i, "action": a, "observation": o, "reward": r}
            for i, (a, o, r) in enumerate(zip(actions, observations, rewards, strict=True))
        ],
        "stop_reason": "finished" if score is not None else "env_error",
        "outcome": None if score is None else {"score": score, "success": score >= 1.0, "reason": ""},
        **extra,
    }
    if flags is not None:
        data["attribution"] = {
            "status": "labelled",
            "good": [flag == "G" for flag in flags],
            "analyses": ["because"] * count,
            "calls": 1,
        }
    return Trajectory.from_dict(data)


def rows_of(records, samples=1, tokens=2):
    """Return keys and step ids of the records' rows: each step is `tokens` sampled tokens and one that was not, dealt
    to `samples` rows."""
    keys, ids = [], []
    for data in records:
        count = len(data.steps)
        for index in range(samples):
            mine = [i for i in range(count) if i * samples // count == index]
            keys.append(f"{data.trajectory_id}_{index}")
            ids.append([step for i in mine for step in [i] * tokens + [-1]])
    return keys, ids
