"""`python -m agentevolver.preload SOCKET`: listen, import, and fork what is asked for. Requests that come while it
imports wait."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import socket
import sys
import threading
import traceback
from pathlib import Path

import setproctitle

from agentevolver.preload.nursery import Nursery, Request, become

# Nine tenths of the time that the run's processes spend on importing, and nothing that loads Ray: its library reads the
# job's number and the raylet's process id where it is loaded.
FOREIGN = (
    *("torch._inductor.lowering", "torch.distributed.fsdp", "tensordict", "transformers.models.auto.auto_factory"),
    *(
        "transformers.image_processing_utils",
        "transformers.models.qwen2.modeling_qwen2",
        "transformers.trainer_pt_utils",
    ),
    *(
        "openai",
        "fastapi",
        "uvicorn",
        "scipy.signal",
        "datasets",
        "hydra",
        "aiohttp",
        "jsonschema",
        "requests",
        "peft",
        "tensorboard",
    ),
    *("vllm.entrypoints.openai.api_server", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen2"),
)
# The rest, for the workers of a job of Ray's. Not what does something that depends on the process while it is imported:
# verl_plugin.engine joins the workers' process group.
OF_A_JOB = (
    *(
        "agentevolver.trainer.run",
        "agentevolver.trainer.trainer",
        "agentevolver.rollout.agent_loop",
        "verl.workers.engine_workers",
    ),
    *("verl.workers.rollout.vllm_rollout.vllm_async_server", "verl.workers.rollout.vllm_rollout.vllm_rollout"),
)
# As verl's runtime environment has them, for what reads them while it is imported.
VARIABLES = {"TOKENIZERS_PARALLELISM": "true", "VLLM_LOGGING_LEVEL": "WARN"}


def import_all(names: tuple[str, ...]) -> None:
    """Import what is there of these modules, and leave what they made out of every later garbage collection."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:  # whoever needs it says so
            print(f"not preloaded: {name}: {error}", flush=True)
    print(f"{len(sys.modules)} modules, {len(os.listdir('/proc/self/task'))} threads", flush=True)
    gc.collect()
    gc.freeze()


def serve(listening: socket.socket, path: Path) -> Request:
    """Be the nursery, and that of a job in a process of its own; returns in the processes that were asked for."""
    import_all(FOREIGN)
    if "ray" in sys.modules:
        raise ImportError("one of FOREIGN imports ray, which must not be loaded before its job is known")
    request, listening_for_job = Nursery(listening, path).serve()
    if listening_for_job is None:
        return request
    os.environ.update({name: value for name, value in request.env.items() if name.startswith("RAY_")})
    import_all(OF_A_JOB)
    return Nursery(listening_for_job, None).serve()[0]


def run(request: Request) -> int:
    """Run what was asked for to its end; returns its exit code."""
    if request.argv[0] in (
        "-m",
        "-c",
    ):  # Ray titles its workers itself, with a library that finds no place after this one
        setproctitle.setproctitle(" ".join((sys.executable, *request.argv)))
    try:
        become(request)()
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # what an interpreter does at its top
        traceback.print_exc()
        return 1


def main() -> None:
    """Never returns."""
    path = Path(sys.argv[1])
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(64)
    os.environ.update({name: os.environ.get(name, value) for name, value in VARIABLES.items()})
    code = run(serve(listening, path))
    # Not through the interpreter's own end, which takes apart what the nursery imported and complains of what it finds.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
