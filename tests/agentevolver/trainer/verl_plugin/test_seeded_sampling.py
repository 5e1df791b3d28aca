"""vLLM on a CPU: what a request with a seed samples is its own, to the last bit, whoever else is in the batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]


def test_a_seeded_request_samples_the_same_alone_together_and_beside_requests_without_a_seed():
    """Prompts are prefilled whole: of a seeded one that is prefilled in parts vLLM's engine would die."""
    script = Path(__file__).with_name("seeded_engine.py")
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    companies = json.loads(ran.stdout.splitlines()[-1])
    together = companies["together"]
    assert len({json.dumps(sampled[0]) for sampled in together.values()}) == len(together) == 12
    for company, sampled in companies.items():
        assert {i: together[i] for i in sampled} == sampled, company
