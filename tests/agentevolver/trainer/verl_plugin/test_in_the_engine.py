from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, Qwen2Config
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from agentevolver.trainer.verl_plugin import log_probs, varlen_attention
from agentevolver.trainer.verl_plugin.resharding import ReshardingEngine
from agentevolver.utils.errors import ConfigError
from tests.agentevolver.trainer.verl_plugin.verls_own import verls_own

LENGTHS = [7, 1, 12, 4]
WORDS = 50


class Whole:
    """verl's configuration of an engine, as far as a forward pass reads it."""

    entropy_checkpointing = False
    entropy_from_logits_with_chunking = False


def engine(attention, sliding_window=None, words=WORDS):
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
        Qwen2Config(vocab_size=words, **sizes, **window), attn_implementation=attention
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


def verls_model(words, *, placeholders=(), fused=False):
    """verl's description of a model whose tokenizer has WORDS tokens."""
    names = dict(zip(("image_token_id", "video_token_id"), placeholders, strict=False))
    return SimpleNamespace(
        tokenizer=range(WORDS),
        processor=SimpleNamespace(**names) if names else None,
        hf_config=Qwen2Config(vocab_size=words),
        use_fused_kernels=fused,
    )


@pytest.mark.parametrize("rows", [WORDS, WORDS + 1, WORDS + 14, 2 * WORDS, 5 * WORDS])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [True, False])
def test_rows_beyond_the_tokenizer_have_no_probability(monkeypatch, rows, temperature, dtype, packed):
    exact, padded = engine("sdpa"), engine("sdpa", words=rows)
    with torch.no_grad():
        for one, other in zip(padded.module.parameters(), exact.module.parameters(), strict=True):
            one[: len(other)] = other
    for made in (exact, padded):
        made.module.to(dtype)
    built = ReshardingEngine.__new__(ReshardingEngine)
    built.module, built.model_config = padded.module, verls_model(rows)
    monkeypatch.setattr(FSDPEngineWithLMHead, "_build_model_optimizer", lambda self: None)
    built._build_model_optimizer()
    found, wanted = (log_probs_of(made, packed=packed, temperature=temperature) for made in (padded, exact))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    for values, entropy in (found, wanted):
        (values.sum() + 0.1 * entropy.sum()).backward()
    for a, b in zip(padded.module.parameters(), exact.module.parameters(), strict=True):
        torch.testing.assert_close(a.grad[: len(b)], b.grad, atol=1e-5, rtol=1e-3)
        assert not a.grad[len(b) :].any()


def test_placeholders_of_images_are_masked_and_fused_kernels_are_refused_only_where_something_is(monkeypatch):
    monkeypatch.setattr(FSDPEngineWithLMHead, "_build_model_optimizer", lambda self: None)
    made = ReshardingEngine.__new__(ReshardingEngine)
    made.module, made.model_config = engine("sdpa").module, verls_model(WORDS, placeholders=(3, 7))
    made._build_model_optimizer()
    chances = made.module(torch.tensor([[1, 2]])).logits.softmax(-1)
    assert not chances[..., [3, 7]].any() and (chances[..., [2, 4]] > 0).all()
    for model, refused in ((verls_model(WORDS, fused=True), False), (verls_model(WORDS + 1, fused=True), True)):
        made.model_config = model
        if refused:
            with pytest.raises(ConfigError, match="1 of this model's 51 token ids"):
                made._build_model_optimizer()
        else:
            made._build_model_optimizer()
