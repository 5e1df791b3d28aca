from tests.trajectories import trajectory


def record(
    group="g", rollout=0, flags=None, score=1.0, steps=3, *, rewards=None, actions=None, observations=None,
    synthetic=False,
):  # fmt: skip
    """A small trajectory; `flags` like "GBG" makes it a labelled one of that many steps, `score` None a failed one."""
    count = len(flags or actions or range(steps))
    actions = actions or [f"act {i}" for i in range(count)]
    observations = observations or [f"saw {i}" for i in range(count)]
    messages = [{"role": "system", "content": "site k4"}, {"role": "user", "content": "delete the note hat"}]
    for action, observation in zip(actions, observations, strict=True):
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    columns = zip(actions, observations, rewards or [0.0] * count, strict=True)
    labels = {"status": "labelled", "good": [flag == "G" for flag in flags or ""], "analyses": ["because"] * count}
    return trajectory(
        task={"task_id": f"t-{group}", "env_type": "pocket", "open_query": synthetic},
        group_id=group,
        rollout_id=rollout,
        messages=messages,
        steps=[{"index": i, "action": a, "observation": o, "reward": r} for i, (a, o, r) in enumerate(columns)],
        stop_reason="env_error" if score is None else "finished",
        outcome=None if score is None else {"score": score, "success": score >= 1.0},
        **({"attribution": {**labels, "calls": 1}} if flags else {}),
    )


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
