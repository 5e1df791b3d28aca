"""The micro-benchmarks in their small mode: what they compare is there, is measured, and is right."""

import json

import pytest
import torch

from benchmarks import gpu_kernels
from tests.agentevolver.verl_plugin.verls_own import verls_own


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    out = tmp_path_factory.mktemp("kernels") / "rows.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_kernels.torch_functional, "logprobs_from_logits_v2", verls_own.logprobs_from_logits_v2)
        measured = gpu_kernels.main(["--device", "cpu", "--repeats", "1", "--out", str(out)])
    written = json.loads(out.read_text())["rows"]
    assert len(written) == len(measured)
    return written


def named(rows, part, name):
    return [row for row in rows if row["part"] == part and row["name"] == name]


def test_every_implementation_of_every_case_ran_and_was_timed(rows):
    assert {row["failed"] for row in rows} == {None}
    assert {(row["part"], row["name"]) for row in rows} >= {
        ("attention", "torch_varlen"),
        ("attention", "sdpa"),
        ("log_probs", "log_probs (ours)"),
        ("log_probs", "verl's loop"),
        ("entropy", "verl's in chunks"),
        ("head", "verl's fused, torch"),
    }
    assert all(row["forward_ms"] > 0 and (row["step_ms"] is None) == (row["gradient_error"] is None) for row in rows)


@pytest.mark.parametrize(
    ("part", "name"), [("attention", "torch_varlen"), ("attention", "sdpa"), ("head", "verl's fused, torch")]
)
def test_what_rounds_to_half_precision_is_near_the_reference(rows, part, name):
    assert all(row["error"] < 0.05 and row["gradient_error"] < 0.02 for row in named(rows, part, name))


def test_ours_is_exact_where_verls_loop_rounds(rows):
    (ours,), (loop,) = named(rows, "log_probs", "log_probs (ours)"), named(rows, "log_probs", "verl's loop")
    assert ours["error"] < 1e-5 and loop["error"] > 1e-3


def test_what_cannot_run_is_a_row_that_says_why_and_the_others_go_on():
    def broken(x):
        raise RuntimeError("out of\nmemory")

    bench, x = gpu_kernels.Bench("cpu", 1), torch.ones(3)
    functions = {"broken": broken, "right": lambda x: x * 2, "wrong": lambda x: x * 3}
    found = list(bench.case("part", "case", 3, (x,), lambda x: x * 2, functions))
    assert [row.failed for row in found] == ["RuntimeError: out of memory", None, None]
    assert [row.error for row in found[1:]] == [0.0, 1.0] and found[2].gradient_error == pytest.approx(0.5)
    assert "out of memory" in gpu_kernels.markdown(found)
