"""A main job whose workers fail: one in its constructor, one by a signal, one that only says so; and one that does not
fail."""

import os
import signal
import sys

import ray


@ray.remote
class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no weights in here")


@ray.remote
class Talker:
    def say(self, text: str) -> int:
        print(text, file=sys.stderr, flush=True)
        return os.getpid()


def main() -> int:
    ray.init(log_to_driver=False)
    talkers = {name: Talker.options(name=name).remote() for name in ("Killed", "Complains", "Well")}
    texts = {
        "Killed": "last words",
        "Complains": "Traceback (most recent call last):\nKeyError: 'a goal'",
        "Well": "nothing to say",
    }
    pids = ray.get([talkers[name].say.remote(texts[name]) for name in talkers])
    os.kill(pids[0], signal.SIGKILL)
    broken = Broken.remote()
    for wait in (lambda: ray.get(talkers["Killed"].say.remote("")), lambda: ray.get(broken.__ray_ready__.remote())):
        try:
            wait()
        except ray.exceptions.RayError as error:
            print(type(error).__name__)
    return 1


if __name__ == "__main__":
    sys.exit(main())
