"""What a step costs by phase, from the records in metrics.jsonl: seconds that add up to the step, tokens a second,
MFU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from agentevolver.config.model import DecoderSize
from agentevolver.trainer.timing import PHASES

Record = Mapping[str, float]

# Dense bf16 with fp32 accumulation, without sparsity, from NVIDIA's data sheets; the first name found in that of the
# device counts.
PEAK_TFLOPS = {
    "H200": 989.4,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.4,
    "A100": 312.0,
    "L40S": 362.1,
    "A10": 125.0,
}
TITLES = {
    "submit": "prompts handed over",
    "gen": "rollouts",
    "gen/sleep": "vLLM put to sleep",
    "collect": "rollouts read, recorded, ordered",
    "old_log_prob": "old log-probs",
    "ref": "reference log-probs",
    "adv": "advantages",
    "update_actor": "update",
    "update_weights": "weights into vLLM, the rest",
    "update_weights/wake_weights": "vLLM woken for weights",
    "update_weights/send": "weights sent",
    "update_weights/wake_kv_cache": "vLLM woken for its cache",
    "end_step": "end of the step",
}
# Forward passes that a phase's FLOPs are worth: a backward pass is two, and one where only adapters learn.
# Recomputation counts nothing.
PASSES = {"old_log_prob": 1, "ref": 1, "update_actor": 3}
LORA_PASSES = {**PASSES, "update_actor": 2}


@dataclass(frozen=True)
class Row:
    """One line of the table: seconds of each step, and what they were spent on."""

    name: str
    seconds: tuple[float, ...]
    share: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None

    @property
    def usual(self) -> float:
        """The median, the first step left out where there are others."""
        return median(self.seconds[1:] or self.seconds)


def peak_flops(device: str) -> float | None:
    """FLOP/s that a device promises in bf16, or None where its name says nothing."""
    return next((tera * 1e12 for name, tera in PEAK_TFLOPS.items() if name in device), None)


def rows(records: Sequence[Record], shape: DecoderSize, *, lora: bool, peak: float | None) -> list[Row]:
    """One row a phase, then `untimed` and the step, then what lies between steps; the phases and `untimed` add up to
    the step.

    Args:
        records: the steps' records, at least one.
        peak: FLOP/s of all devices together; None: no MFU.
    """

    def column(key: str) -> list[float]:
        return [record.get(f"timing_s/{key}", 0.0) for record in records]

    step = column("step")
    seconds: dict[str, list[float]] = {}
    for name in PHASES:
        if any(column(name)):
            parts = {key: column(key) for key in TITLES if key.startswith(f"{name}/") and any(column(key))}
            seconds[name] = [whole - sum(part) for whole, *part in zip(column(name), *parts.values(), strict=True)]
            seconds |= parts
    timed = [sum(values) for values in zip(*seconds.values(), strict=True)]
    seconds["untimed"] = [whole - part for whole, part in zip(step, timed, strict=True)]
    seconds["step"] = step
    table = [_row(name, values, records, step, shape, lora, peak) for name, values in seconds.items()]
    between = [record["timing_s/between_steps"] for record in records if "timing_s/between_steps" in record]
    return [*table, Row("between steps", tuple(between))] if between else table


def _row(
    name: str,
    values: Sequence[float],
    records: Sequence[Record],
    step: Sequence[float],
    shape: DecoderSize,
    lora: bool,
    peak: float | None,
) -> Row:
    kept = slice(1, None) if len(records) > 1 else slice(None)
    share = median(s / whole for s, whole in zip(values[kept], step[kept], strict=True))
    speed = mfu = None
    if name == "gen":
        speed = median(
            record["rollout/action_tokens"] / s for record, s in zip(records[kept], values[kept], strict=True) if s > 0
        )
    passes = (LORA_PASSES if lora else PASSES).get(name)
    if passes is not None and all(s > 0 for s in values):
        pairs = list(zip(records[kept], values[kept], strict=True))
        speed = median(record["perf/total_num_tokens"] / s for record, s in pairs)
        if peak is not None:
            mfu = (
                median(
                    passes * forward_flops(shape, record["perf/total_num_tokens"], length(record)) / s
                    for record, s in pairs
                )
                / peak
            )
    return Row(TITLES.get(name, name), tuple(values), share, speed, mfu)


def forward_flops(shape: DecoderSize, tokens: float, length: float) -> float:
    """Return the FLOPs of a forward pass over `tokens` in sequences of `length`: 2 for each parameter that multiplies
    a token, and the two products of causal attention, each 2 x heads x head size for the length / 2 tokens seen on
    average (PaLM, appendix B, halved for causality)."""
    multiplying = shape.layers * shape.layer_parameters + shape.vocabulary * shape.hidden
    width = shape.heads * (shape.head_size or shape.hidden // shape.heads)
    return tokens * (2 * multiplying + 2 * shape.layers * width * length)


def length(record: Record) -> float:
    """The mean length of a step's rows in tokens. Attention grows with the mean of the squares, which is no less: MFU
    is not too high."""
    return record["prompt_length/mean"] + record["response_length/mean"]


def table_of(title: str, body: Sequence[Row]) -> Table:
    """The rows as a table: the first step, the median of the others, its share, tokens a second, MFU."""
    table = Table("phase", title=title)
    for name in ("first step, s", "median, s", "least", "greatest", "share", "tokens/s", "MFU"):
        table.add_column(name, justify="right")
    for row in body:
        later = row.seconds[1:] or row.seconds
        cells = [f"{s:.2f}" for s in (row.seconds[0], row.usual, min(later), max(later))]
        cells.append("" if row.share is None else f"{row.share:.1%}")
        cells.append("" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}")
        cells.append("" if row.mfu is None else f"{row.mfu:.1%}")
        table.add_row(row.name, *cells, end_section=row.name in ("untimed", "step"))
    return table


def ratios(title: str, conditions: Mapping[str, Sequence[Row]]) -> Table:
    """Seconds of each phase under each condition, and the first condition's seconds divided by them (above 1: faster
    than the first)."""
    base, *_ = conditions
    seconds = {name: {row.name: row.usual for row in body} for name, body in conditions.items()}
    table = Table("phase", title=title)
    for name in conditions:
        table.add_column(f"{name}, s", justify="right")
        if name != base:
            table.add_column(f"{base} / {name}", justify="right")
    for phase in dict.fromkeys(name for body in seconds.values() for name in body):
        cells = []
        for name, column in seconds.items():
            s, reference = column.get(phase), seconds[base].get(phase)
            cells.append("" if s is None else f"{s:.2f}")
            if name != base:
                cells.append(f"{reference / s:.2f}" if s and reference else "")
        table.add_row(phase, *cells)
    return table
