"""What the CPU engine makes of `mixed_precision.param_dtype`."""

import pytest
import torch
from verl.workers.config import FSDPEngineConfig

from agentevolver.trainer.verl_plugin.engine import CpuEngine, ReshardingEngine


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "autocast"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_fsdp_keeps_fp32_weights_and_autocast_rounds_the_products(monkeypatch, dtype, autocast):
    engine, seen = object.__new__(CpuEngine), []
    engine.engine_config = asked = FSDPEngineConfig(mixed_precision={"param_dtype": dtype, "reduce_dtype": "fp32"})

    def build(self, module):
        seen.append(self.engine_config.mixed_precision)
        self._autocast_dtype = torch.float32
        return module

    monkeypatch.setattr(ReshardingEngine, "_build_fsdp_module", build, raising=False)
    engine._build_fsdp_module(torch.nn.Linear(1, 1))
    assert seen == [{"param_dtype": "fp32", "reduce_dtype": "fp32"}]
    assert engine._autocast_dtype is autocast and engine.engine_config is asked
