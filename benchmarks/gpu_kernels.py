"""Kernels of a training step, one by one: attention of packed rows, log-probs and entropies at a real vocabulary, the
whole last layer.

    python benchmarks/gpu_kernels.py [--parts attention log_probs entropy head] [--device auto|cuda|cpu] [--small]
    [--repeats 5]
        [--flash FA3|FA4] [--out FILE.json]

attention: `torch_varlen` (ours), transformers' `sdpa` with the mask that it makes of packed rows, `flash_attention_2`
    where it is installed; one layer of Qwen2.5 0.5 B, 1.5 B and 7 B, rows of one length and of many.
log_probs: of logits of 151,936 words: `log_probs` (ours), verl's loop, `F.cross_entropy` of all logits in float32,
    flash-attn's where it is installed; beside them what it costs to read the logits once.
entropy: verl's function as it is, in chunks, and compiled.
head: hidden states to log-probs and back to the gradients of both: the matrix product with ours behind it, and verl's
    fused kernels (`use_fused_kernels`), which never hold all logits.

Errors are the largest absolute ones against the same in float32 from the same inputs in half precision; those of
gradients are relative to the gradient's norm. Peak: bytes beyond the inputs, forward and backward. --small (always on a
CPU): shapes that end within seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The folder of this file holds a script that is named like a package.
ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from transformers import AttentionInterface, Qwen2Config  # noqa: E402
from transformers.masking_utils import create_causal_mask  # noqa: E402
from verl.utils import torch_functional  # noqa: E402

from agentevolver.config import devices  # noqa: E402
from agentevolver.verl_plugin import varlen_attention  # noqa: E402
from agentevolver.verl_plugin.log_probs import log_probs  # noqa: E402

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """What a layer of a Qwen2.5 looks like."""

    name: str
    heads: int
    key_heads: int
    head_size: int

    @property
    def hidden(self) -> int:
        """Width of a hidden state."""
        return self.heads * self.head_size


QWEN = (Shape("0.5B", 14, 2, 64), Shape("1.5B", 12, 2, 128), Shape("7B", 28, 4, 128))
TINY = (Shape("tiny", 4, 2, 32),)


@dataclass(frozen=True)
class Row:
    """One implementation in one case; None where it does not say or did not run (`failed` says why)."""

    part: str
    case: str
    name: str
    tokens: int
    forward_ms: float | None = None
    step_ms: float | None = None
    error: float | None = None
    gradient_error: float | None = None
    peak_gib: float | None = None
    failed: str | None = None

    @property
    def us_per_token(self) -> float | None:
        """Microseconds a token takes, forward and backward (forward alone where there is no backward)."""
        total = self.forward_ms if self.step_ms is None else self.step_ms
        return None if total is None else total * 1e3 / self.tokens


class Bench:
    """Runs implementations of one case after the other against a reference in float32."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device = torch.device(device)
        self.repeats = repeats

    def case(
        self,
        part: str,
        case: str,
        tokens: int,
        inputs: Tensors,
        reference: Function,
        functions: dict[str, Function],
        *,
        backward: bool = True,
    ) -> Iterator[Row]:
        """Yield a row for each function. `inputs` are the leaves whose gradients are compared; `reference` is given
        them in float32."""
        wide = tuple(x.detach().float().requires_grad_(backward) for x in inputs)
        exact = reference(*wide)
        weights = torch.randn_like(exact)
        if backward:
            exact.backward(weights)
        expected = [x.grad for x in wide]
        exact = exact.detach()
        del wide
        for name, function in functions.items():
            leaves = tuple(x.detach().clone().requires_grad_(backward) for x in inputs)
            try:
                yield self._row(
                    part, case, name, tokens, function, leaves, exact, weights if backward else None, expected
                )
            except (RuntimeError, AssertionError, ImportError, NotImplementedError, ValueError, TypeError) as error:
                yield Row(
                    part, case, name, tokens, failed=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
                )
            del leaves
            self._clear()

    def _row(
        self,
        part: str,
        case: str,
        name: str,
        tokens: int,
        function: Function,
        leaves: Tensors,
        exact: torch.Tensor,
        weights: torch.Tensor | None,
        expected: list[torch.Tensor | None],
    ) -> Row:
        def step() -> torch.Tensor:
            for leaf in leaves:
                leaf.grad = None
            result = function(*leaves)
            if weights is not None:
                result.backward(weights.to(result.dtype))
            return result.detach()

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return function(*leaves)

        self._clear()
        before = self._allocated()
        result = step()
        peak = self._peak(before)
        error = (result.float() - exact).abs().max().item()
        gradient_error = None
        if weights is not None:
            pairs = [
                (leaf.grad, grad)
                for leaf, grad in zip(leaves, expected, strict=True)
                if leaf.grad is not None and grad is not None
            ]
            gradient_error = max(((a.float() - b).norm() / b.norm()).item() for a, b in pairs)
        del result
        forward_ms = self._time(forward)
        step_ms = self._time(step) if weights is not None else None
        return Row(part, case, name, tokens, forward_ms, step_ms, error, gradient_error, peak)

    def _time(self, function: Callable[[], Any]) -> float:
        """Return the median of the repeats in milliseconds, after one that does not count."""
        function()
        times = []
        for _ in range(self.repeats):
            self._wait()
            started = time.perf_counter()
            function()
            self._wait()
            times.append((time.perf_counter() - started) * 1e3)
        return sorted(times)[len(times) // 2]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _clear(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device.type == "cuda" else 0

    def _peak(self, before: int) -> float | None:
        return (torch.cuda.max_memory_allocated() - before) / 2**30 if self.device.type == "cuda" else None


def attention(bench: Bench, small: bool) -> Iterator[Row]:
    """Yield the rows of attention."""
    varlen_attention.register()
    generator = torch.Generator().manual_seed(0)
    mixed = (torch.rand(24, generator=generator).square() * 2400 + 40).long().tolist()
    layouts = (
        {"3x40": [40] * 3, "1..50": [50, 1, 17]}
        if small
        else {"8x2048": [2048] * 8, "4x4096": [4096] * 4, "24 of 40..2440": mixed}
    )
    for shape in TINY if small else QWEN:
        for layout, lengths in layouts.items():
            yield from _attention_case(bench, shape, layout, lengths)


def _attention_case(bench: Bench, shape: Shape, layout: str, lengths: list[int]) -> Iterator[Row]:
    tokens = sum(lengths)
    inputs = tuple(
        torch.randn(1, heads, tokens, shape.head_size, device=bench.device, dtype=torch.bfloat16)
        for heads in (shape.heads, shape.key_heads, shape.key_heads)
    )
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(bench.device)
    scaling = shape.head_size**-0.5

    def of(name: str) -> Function:
        sizes = {
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.key_heads,
            "hidden_size": shape.hidden,
        }
        config = Qwen2Config(**sizes)
        config._attn_implementation = name
        module = torch.nn.Linear(1, 1, dtype=torch.bfloat16, device=bench.device)
        module.config, module.is_causal, module.num_key_value_groups = config, True, shape.heads // shape.key_heads
        embeddings = torch.empty(1, tokens, 1, dtype=torch.bfloat16, device=bench.device)
        mask = create_causal_mask(
            config=config, inputs_embeds=embeddings, attention_mask=None, past_key_values=None, position_ids=positions
        )
        interface = AttentionInterface()[name]

        def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = interface(module, query, key, value, mask, scaling=scaling, position_ids=positions)[
                0
            ]
            return output

        return run

    def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return varlen_attention._by_sequence(query, key, value, lengths, scaling, None).transpose(1, 2)

    names = [varlen_attention.NAME, "sdpa"]
    if (chosen := devices.attention()) not in names:
        names.append(chosen)
    yield from bench.case(
        "attention", f"{shape.name} {layout}", tokens, inputs, exact, {name: of(name) for name in names}
    )


def _logits(bench: Bench, small: bool) -> tuple[torch.Tensor, torch.Tensor, str]:
    tokens, vocabulary = (96, 1000) if small else (2048, 151936)
    logits = (torch.randn(tokens, vocabulary, device=bench.device) * 2).bfloat16()
    return logits, torch.randint(0, vocabulary, (tokens,), device=bench.device), f"{tokens} x {vocabulary}"


def _exact_log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits, -1).gather(-1, labels[:, None]).squeeze(-1)


def log_probs_part(bench: Bench, small: bool) -> Iterator[Row]:
    """Yield the rows of log-probs from logits."""
    logits, labels, case = _logits(bench, small)
    functions: dict[str, Function] = {
        "log_probs (ours)": lambda x: log_probs(x, labels),
        "verl's loop": lambda x: torch_functional.logprobs_from_logits_v2(x, labels),
        "F.cross_entropy in float32": lambda x: -F.cross_entropy(x.float(), labels, reduction="none"),
    }
    if torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE and bench.device.type == "cuda":
        functions["flash-attn's"] = lambda x: torch_functional.logprobs_from_logits_flash_attn(
            x, labels, inplace_backward=False
        )
    yield from bench.case("log_probs", case, len(labels), (logits,), lambda x: _exact_log_probs(x, labels), functions)
    read = {"reading the logits (max)": lambda x: x.amax(-1)}
    yield from bench.case("log_probs", case, len(labels), (logits,), lambda x: x.amax(-1), read, backward=False)


def entropy(bench: Bench, small: bool) -> Iterator[Row]:
    """Yield the rows of entropies, with and without a gradient."""
    logits, labels, case = _logits(bench, small)
    functions: dict[str, Function] = {
        "verl's": torch_functional.entropy_from_logits,
        "verl's in chunks": lambda x: torch_functional.entropy_from_logits_with_chunking(x, chunk_size=512),
    }
    if not small:
        functions["verl's compiled"] = torch.compile(torch_functional.entropy_from_logits, dynamic=True)
    for backward in (False, True):
        title = f"{case}{' with a gradient' if backward else ''}"
        yield from bench.case(
            "entropy", title, len(labels), (logits,), torch_functional.entropy_from_logits, functions, backward=backward
        )


def head(bench: Bench, small: bool) -> Iterator[Row]:
    """Yield the rows of hidden states to log-probs."""
    tokens, vocabulary = (96, 1000) if small else (8192, 151936)
    for shape in TINY if small else QWEN:
        hidden = torch.randn(tokens, shape.hidden, device=bench.device).bfloat16()
        weight = (torch.randn(vocabulary, shape.hidden, device=bench.device) * 2 / math.sqrt(shape.hidden)).bfloat16()
        labels = torch.randint(0, vocabulary, (tokens,), device=bench.device)
        yield from bench.case(
            "head",
            f"{shape.name}, {tokens} x {vocabulary}",
            tokens,
            (hidden, weight),
            _exact_head(labels),
            _heads(labels, bench.device.type),
        )


def _exact_head(labels: torch.Tensor) -> Function:
    """The reference keeps nothing but each chunk's own logits: all of them in float32 do not fit."""

    def run(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        def part(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
            return _exact_log_probs(rows @ weight.t(), chosen)

        chunks = zip(hidden.split(1024), labels.split(1024), strict=True)
        return torch.cat([torch.utils.checkpoint.checkpoint(part, *chunk, use_reentrant=False) for chunk in chunks])

    return run


def _heads(labels: torch.Tensor, device: str) -> dict[str, Function]:
    from verl.utils.experimental import torch_functional as fused

    functions: dict[str, Function] = {
        "matmul, log_probs (ours)": lambda hidden, weight: log_probs(hidden @ weight.t(), labels),
        "verl's fused, torch": lambda hidden, weight: fused.FusedLinearForPPO()(hidden, weight, labels)[0],
    }
    if device == "cuda" and fused._LIGER_FUSED_LINEAR_SCALED_CROSS_ENTROPY is not None:
        functions["verl's fused, liger"] = lambda hidden, weight: fused.FusedLinearForPPO(impl_backend="liger")(
            hidden, weight, labels
        )[0]
    if device == "cuda":

        def triton(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

            result: torch.Tensor = linear_cross_entropy(hidden, weight, labels, 1.0, "none")[0]
            return result

        functions["verl's fused, triton"] = triton
    return functions


PARTS: dict[str, Callable[[Bench, bool], Iterator[Row]]] = {
    "attention": attention,
    "log_probs": log_probs_part,
    "entropy": entropy,
    "head": head,
}


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table."""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        "| part | case | implementation | forward ms | with backward ms | us/token | error | gradient's | peak GiB |"
    ]
    lines.append(f"|{'---|' * 9}")
    for row in rows:
        cells = (
            row.part,
            row.case,
            row.name,
            row.failed or number(row.forward_ms, ".2f"),
            number(row.step_ms, ".2f"),
            number(row.us_per_token, ".2f"),
            number(row.error, ".1e"),
            number(row.gradient_error, ".1e"),
            number(row.peak_gib, ".2f"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> list[Row]:
    """Run the parts, print a table, and return its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--small", action="store_true", help="shapes that end within seconds; always on a CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--flash",
        choices=("FA3", "FA4"),
        help="run torch's flash attention by this package's kernels (torch.nn.attention)",
    )
    parser.add_argument("--out", type=Path, help="rows as JSON, written after each part")
    arguments = parser.parse_args(argv)
    device = arguments.device if arguments.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    if arguments.flash:
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl(arguments.flash)
        where = f"{where}, {arguments.flash}"
    torch.manual_seed(0)
    print(f"{where}, torch {torch.__version__}, {arguments.repeats} repeats", flush=True)
    bench, rows = Bench(device, arguments.repeats), list[Row]()
    for name in arguments.parts:
        started = time.perf_counter()
        found = list(PARTS[name](bench, arguments.small or device == "cpu"))
        rows += found
        print(f"\n{markdown(found)}\n{name}: {time.perf_counter() - started:.0f} s", flush=True)
        if arguments.out:
            arguments.out.write_text(
                json.dumps(
                    {"device": where, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}, indent=1
                )
            )
    return rows


if __name__ == "__main__":
    main()
