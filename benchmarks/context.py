"""CPU time per turn and tokens per context template over long episodes, against an engine that answers at once.

    python -m benchmarks.context [--turns 10 30 100 300] [--tokens 200] [--window 4096] [--repeats 5]

Timed is what the context does and nothing else: housekeeping, prompt, recording the reply, observation, and at the end
the training samples. Every turn has `--tokens` tokens: a fifth is the reply, the rest the observation. In `reasoning`
half of a reply is a thought; in `sliding_window` and `self_managed` the context may hold `--window` tokens, and the
policy answers with a summary, or with commands that remove the older half of what it is asked about. Two rows for
comparison: `each message once` tokenises every observation and decodes every reply and does nothing else; `whole,
again` renders and tokenises the whole conversation every turn and takes the mask from the lengths, as a loop around a
chat template does that keeps messages and no ids.

The tokenizer is a byte-level BPE trained on this project's own text, which is also what the messages are made of. CPU
time of one thread; of `--repeats` episodes the median.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from context_manager.chat import ChatRenderer
from context_manager.registry import TEMPLATES
from context_manager.settings import ContextSettings
from context_manager.template import ContextLimits, ContextTemplate

ROOT = Path(__file__).parents[1]
VOCAB = 16_000
ONCE, AGAIN = "each message once", "whole, again"
CHATML = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
OPENING = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Tidy the house up."},
]


@dataclass
class Measured:
    """One episode: CPU seconds of its turns and of its samples, the lengths of its prompts, side calls among them, and
    its samples."""

    turn_s: list[float] = field(default_factory=list)
    samples_s: float = 0.0
    prompts: list[int] = field(default_factory=list)
    samples: int = 0
    sample_tokens: int = 0
    sampled: int = 0

    @property
    def total_ms(self) -> float:
        return 1e3 * (sum(self.turn_s) + self.samples_s)


class Script:
    """What policy and environment say: as many tokens as asked for, of this project's text."""

    def __init__(self) -> None:
        texts = [
            path.read_text()
            for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*_*/*.py"), *ROOT.glob("agentevolver/**/*.py")])
        ]
        self.tokenizer = _train(texts)
        self._ids = self.tokenizer.encode("\n".join(texts))
        self._draw = random.Random(0)

    def text(self, tokens: int) -> str:
        start = self._draw.randrange(len(self._ids) - tokens)
        return str(self.tokenizer.decode(self._ids[start : start + tokens]))

    def turn(self, tokens: int, think: bool = False) -> tuple[list[int], str]:
        """Return a reply's ids, closed, and the observation after it."""
        reply, half = tokens // 5, tokens // 10
        said = f"<think>{self.text(half)}</think>\n\n{self.text(reply - half)}" if think else self.text(reply)
        return self.closed(said), self.text(tokens - reply)

    def closed(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]


def _train(texts: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


def run_template(name: str, script: Script, tokens: int, window: int, turns: int) -> Measured:
    """Play one episode through a template."""
    wide = 10**7
    short = name in ("sliding_window", "self_managed")
    limits = ContextLimits(wide, window if short else wide, wide, 256, 4_096)
    context: ContextTemplate = TEMPLATES[name](ChatRenderer(script.tokenizer), limits, ContextSettings())
    plan = [script.turn(tokens, name == "reasoning") for _ in range(turns)]
    summary = script.closed(script.text(100))
    context.start(OPENING)
    measured, step = Measured(), 0
    for reply, seen in plan:
        log_probs = [-0.5] * len(reply)
        began = time.process_time()
        while (call := context.housekeeping()) is not None:
            numbers = [m.number for m in context.timeline.messages]
            older = " ".join(f"m{number}" for number in numbers[: len(numbers) // 2])
            answer = summary if call.kind == "summary" else script.closed(f"remove {older}")[: call.max_new_tokens]
            measured.prompts.append(len(call.prompt_ids))
            context.answer(call, answer, [-0.5] * len(answer), step)
            step += 1
        prompt = context.next_prompt()
        context.action(context.record(reply, log_probs, step))
        context.observe([{"role": "user", "content": seen}])
        measured.turn_s.append(time.process_time() - began)
        measured.prompts.append(len(prompt))
        step += 1
    began = time.process_time()
    samples = context.samples()
    measured.samples_s = time.process_time() - began
    assert sum(sum(sample.response_mask) for sample in samples) == sum(
        len(snapshot.sampled_ids) for snapshot in context.recorder.snapshots
    )
    measured.samples = len(samples)
    measured.sample_tokens = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)
    measured.sampled = sum(sum(sample.response_mask) for sample in samples)
    return measured


def run_again(script: Script, tokens: int, turns: int) -> Measured:
    """Play one episode by rendering and tokenising all of it every turn; the mask is what each reply adds to the
    length."""
    tokenizer, plan = script.tokenizer, [script.turn(tokens) for _ in range(turns)]
    messages, spans, measured = list(OPENING), [], Measured()
    ids: list[int] = []
    for reply, seen in plan:
        began = time.process_time()
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        messages.append({"role": "assistant", "content": tokenizer.decode(reply, skip_special_tokens=True)})
        ids = tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
        spans.append((len(prompt), len(ids)))
        messages.append({"role": "user", "content": seen})
        measured.turn_s.append(time.process_time() - began)
        measured.prompts.append(len(prompt))
    began = time.process_time()
    mask = [0] * len(ids)
    for start, end in spans:
        mask[start:end] = [1] * (end - start)
    measured.samples_s = time.process_time() - began
    measured.samples, measured.sample_tokens, measured.sampled = 1, len(ids), sum(mask)
    return measured


def run_once(script: Script, tokens: int, turns: int) -> Measured:
    """Tokenise every observation once and decode every reply once: what no way of keeping a conversation can do
    without."""
    tokenizer, plan, measured = script.tokenizer, [script.turn(tokens) for _ in range(turns)], Measured()
    for reply, seen in plan:
        began = time.process_time()
        tokenizer.encode(seen, add_special_tokens=False)
        tokenizer.decode(reply, skip_special_tokens=True)
        measured.turn_s.append(time.process_time() - began)
    return measured


def ways(script: Script, tokens: int, window: int) -> dict[str, Callable[[int], Measured]]:
    """Return what plays an episode of so many turns, by name."""
    found: dict[str, Callable[[int], Measured]] = {
        name: partial(run_template, name, script, tokens, window) for name in TEMPLATES
    }
    return found | {ONCE: partial(run_once, script, tokens), AGAIN: partial(run_again, script, tokens)}


def median_of(play: Callable[[int], Measured], turns: int, repeats: int) -> Measured:
    """Return the episode of median time."""
    return sorted((play(turns) for _ in range(repeats)), key=lambda measured: measured.total_ms)[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 30, 100, 300])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--window", type=int, default=4_096)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    script = Script()
    table = Table(title=f"{arguments.tokens} tokens a turn; CPU time, one thread")
    columns = (
        "template",
        "turns",
        "all ms",
        "us a turn",
        "us a token",
        "samples ms",
        "calls",
        "mean prompt",
        "longest",
    )
    for column in (*columns, "samples", "their tokens", "sampled"):
        table.add_column(column, justify="left" if column == "template" else "right")
    growth: dict[str, list[float]] = {}
    for name, play in ways(script, arguments.tokens, arguments.window).items():
        for turns in arguments.turns:
            m = median_of(play, turns, 1 if name == AGAIN else arguments.repeats)
            per_turn = 1e6 * statistics.fmean(m.turn_s)
            growth.setdefault(name, []).append(per_turn)
            cells = [f"{m.total_ms:.1f}", f"{per_turn:.0f}", f"{per_turn / arguments.tokens:.2f}"]
            if m.prompts:
                cells += [
                    f"{1e3 * m.samples_s:.2f}",
                    f"{len(m.prompts)}",
                    f"{statistics.fmean(m.prompts):.0f}",
                    f"{max(m.prompts)}",
                ]
                cells += [f"{m.samples}", f"{m.sample_tokens}", f"{m.sampled}"]
            table.add_row(name, str(turns), *cells)
        table.add_section()
    console = Console(width=150)
    console.print(table)
    for name, values in growth.items():
        steps = ", ".join(f"x{later / earlier:.2f}" for earlier, later in pairwise(values))
        console.print(f"{name}: time of a turn from one row to the next {steps}")
    long = ways(script, 325, arguments.window)
    ours, once, again = (
        median_of(long[name], 40, 1 if name == AGAIN else arguments.repeats) for name in ("causal", ONCE, AGAIN)
    )
    console.print(
        f"40 turns, {ours.sample_tokens} tokens: causal {ours.total_ms:.1f} ms (samples {1e3 * ours.samples_s:.2f}), "
        f"{ONCE} {once.total_ms:.1f} ms, {AGAIN} {again.total_ms:.0f} ms"
    )


if __name__ == "__main__":
    main()
