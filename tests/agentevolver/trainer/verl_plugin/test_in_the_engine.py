import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, Qwen2Config
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from agentevolver.trainer.verl_plugin import log_probs, varlen_attention
from tests.agentevolver.trainer.verl_plugin.verls_own import verls_own

LENGTHS = [7, 1, 12, 4]
WORDS = 50


class Whole:
    """verl's configuration of an engine, as far as a forward pass reads it."""

    entropy_checkpointing = False
    entropy_from_logits_with_chunking = False


def engine(attention, sliding_window=None):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    window = (
        {"use_sliding_window": True, "sliding_window": sliding_window, "max_window_layers": 1} if sliding_window else {}
    )
    made = object.__new__(FSDPEngineWithLMHead)
    made.module = AutoModelForCausalLM.from_config(
        Qwen2Config(vocab_size=WORDS, **sizes, **window), attn_implementation=attention
    )
    made.engine_config, made.use_ulysses_sp, made.pad_to_length = Whole(), False, False
    made.compute_entropy_from_logits = torch_functional.entropy_from_logits
    return made


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)
    varlen_attention.register()
    log_probs.install()


def log_probs_of(made, *, packed, temperature=0.7, bucket=None):
    """What verl makes of a micro-batch: log-probs and entropy of every token, in order."""
    if bucket:
        made.pad_to_length, made.pad_to_length_bucket = True, bucket
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(WORDS, (length,), generator=draw) for length in LENGTHS]
    batch = TensorDict(
        {
            "input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
            "position_ids": torch.nested.as_nested_tensor(
                [torch.arange(length) for length in LENGTHS], layout=torch.jagged
            ),
        },
        batch_size=len(LENGTHS),
    )
    tu.assign_non_tensor(batch, use_remove_padding=packed, temperature=temperature, calculate_entropy=True)
    inputs, arguments = made.prepare_model_inputs(batch)
    output = made.prepare_model_outputs(made.module(**inputs, use_cache=False), arguments, batch, None)
    return output["log_probs"].values(), output["entropy"].values()


@pytest.mark.parametrize("case", [{}, {"temperature": 1.0}, {"bucket": 16}])
@pytest.mark.parametrize("sliding_window", [None, 5])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_give_what_padded_rows_give(monkeypatch, case, sliding_window, checkpointing):
    ours, verls = engine("torch_varlen", sliding_window), engine("sdpa", sliding_window)
    if checkpointing:
        ours.module.train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    packed = log_probs_of(ours, packed=True, **case)
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", verls_own.logprobs_from_logits_v2)
    padded = log_probs_of(verls, packed=False, **{key: value for key, value in case.items() if key != "bucket"})
    ends = (
        torch.tensor(LENGTHS).cumsum(0) - 1
    )  # what a row's last token is asked for is the next row's first: nobody reads it
    kept = torch.ones(sum(LENGTHS), dtype=torch.bool).index_fill(0, ends, False)
    for a, b in zip(packed, padded, strict=True):
        torch.testing.assert_close(a[kept], b[kept], atol=1e-5, rtol=1e-5)
    for values, entropy in (packed, padded):
        (values[kept].sum() + 0.1 * entropy[kept].sum()).backward()
    for a, b in zip(ours.module.parameters(), verls.module.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
