"""`launcher.py --help` answers at once, guarded by what it imports and not by seconds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "ray", "verl", "vllm", "transformers", "numpy", "omegaconf", "hydra", "pydantic", "httpx", "fastapi")


def test_help_imports_nothing_that_takes_time() -> None:
    code = (
        "import sys; from pathlib import Path; from agentevolver.launcher.cli import main\n"
        "try: main(['--help'], Path('.'))\n"
        f"except SystemExit: print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    answered = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--conf" in answered.stdout and answered.stdout.splitlines()[-1] == "LOADED []"
