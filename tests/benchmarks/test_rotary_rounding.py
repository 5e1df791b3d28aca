"""The benchmark of rounded rotary frequencies sees what they do, and nothing where nothing is rounded."""

import sys

import torch

from agentevolver.launcher.memory import Decoder
from benchmarks import rotary_rounding

WIDE = Decoder(512, 64, 1, 2, 1, 0, tied=True)


def test_rounded_frequencies_lose_the_exact_ones_with_the_position():
    found = rotary_rounding.cosines(WIDE, layers=1, tokens=600)
    exact, rounded = found["bf16"], found["bf16, frequencies too"]
    assert exact.shape == rounded.shape == torch.Size([600])
    assert exact.min() > 0.999
    assert torch.allclose(rounded[:2], exact[:2], atol=1e-3), "position 0 turns nothing, 1 hardly"
    assert 1 - rounded[-60:].mean() > 3 * (1 - exact[-60:].mean())


def test_the_command_prints_both(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rotary_rounding", "--shape", "tiny", "--tokens", "40", "--layers", "1"])
    rotary_rounding.main()
    assert "bf16, frequencies too" in capsys.readouterr().out
