"""The tokenizer of calc's seed policy, learnt once, and as a run loads it."""

import pytest
from transformers import AutoTokenizer, Qwen2Config

from agentevolver.recipes.offline.seed.calc.build import VOCAB_SIZE, corpus
from agentevolver.recipes.offline.seed.calc.measure import SYNTAX
from agentevolver.recipes.offline.seed.data import build_tokenizer


@pytest.fixture(scope="session")
def trained():
    return build_tokenizer(corpus(0), VOCAB_SIZE, SYNTAX)


@pytest.fixture(scope="session")
def loaded(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calc")
    trained.save_pretrained(folder)
    Qwen2Config().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
