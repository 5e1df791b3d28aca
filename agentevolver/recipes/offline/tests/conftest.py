"""The shipped seed policy, loaded once."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(seed_policy_path())


@pytest.fixture(scope="session")
def model():
    return AutoModelForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32).eval()
