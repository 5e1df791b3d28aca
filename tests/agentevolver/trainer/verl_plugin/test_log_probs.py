import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.utils import torch_functional

from agentevolver.trainer.verl_plugin import log_probs as module
from agentevolver.trainer.verl_plugin.log_probs import log_probs
from tests.agentevolver.trainer.verl_plugin.verls_own import verls_own

VERLS_OWN = verls_own.logprobs_from_logits_v2


def random(tokens, vocabulary, seed, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    logits = (torch.randn(tokens, vocabulary, generator=draw) * 4).to(dtype)
    return logits, torch.randint(vocabulary, (tokens,), generator=draw), torch.randn(tokens, generator=draw)


def both(function, logits, labels, weights):
    leaf = logits.clone().requires_grad_()
    result = function(leaf, labels)
    result.backward(weights.to(result.dtype))
    return result.detach(), leaf.grad


@pytest.mark.thorough
@given(
    tokens=st.integers(1, 40), vocabulary=st.integers(1, 300), seed=st.integers(0, 2**16), chunk=st.integers(1, 4000)
)
def test_values_and_gradients_are_verls_own_in_float32(tokens, vocabulary, seed, chunk):
    logits, labels, weights = random(tokens, vocabulary, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ELEMENTS", chunk)
        ours = both(log_probs, logits, labels, weights)
    verls = both(VERLS_OWN, logits, labels, weights)
    for a, b in zip(ours, verls, strict=True):
        torch.testing.assert_close(a, b, atol=4e-6, rtol=1e-6)


@pytest.mark.thorough
@given(tokens=st.integers(1, 20), vocabulary=st.integers(2, 300), seed=st.integers(0, 2**16))
def test_of_half_precision_logits_they_are_exact_where_verls_are_rounded(tokens, vocabulary, seed):
    logits, labels, weights = random(tokens, vocabulary, seed, torch.bfloat16)
    values, gradient = both(log_probs, logits, labels, weights)
    exact, exact_gradient = both(VERLS_OWN, logits.double(), labels, weights)
    assert values.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    torch.testing.assert_close(values.double(), exact, atol=4e-6, rtol=1e-6)
    torch.testing.assert_close(gradient.double(), exact_gradient, atol=1e-6, rtol=2**-8)


@pytest.mark.skipif(
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE,
    reason="flash-attn's kernel comes first where it is installed",
)
def test_verl_looks_the_function_up_when_it_calls_it(monkeypatch):
    """The engine's own name for it, called as the engine calls it: an upgrade that no longer finds ours by name fails
    here."""
    from verl.workers.engine.fsdp import transformer_impl

    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", VERLS_OWN)
    logits, labels, _ = random(8, 1000, 3, torch.bfloat16)
    call = {"logits": logits, "labels": labels, "inplace_backward": True}
    assert transformer_impl.logprobs_from_logits(**call).dtype == torch.bfloat16, (
        "verl's loop no longer rounds: is log_probs needed?"
    )
    module.install()
    assert torch.equal(transformer_impl.logprobs_from_logits(**call), log_probs(logits, labels))
