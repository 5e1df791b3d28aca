"""TRL's side of `benchmarks.peers`: runs in a virtual environment of its own, with the checkout in PYTHONPATH.

    python -m benchmarks.peers_trl MODEL OUT --url http://127.0.0.1:8080 --steps 8 [--single]

Trains MODEL by TRL's GRPOTrainer on PocketWorld's training tasks, 8 tasks x 8 rollouts a step, two optimiser steps, as
`examples/basic.yaml` does, and writes a line of JSON a step. TRL has every turn as a call of a tool, and an episode end
where the model calls none: here the whole reply is the call of the one tool, until the world says that it is over. So
there is one reply more than turns. `--single` has one reply to the opening and no environment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset  # type: ignore[import-not-found,import-untyped,unused-ignore]
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found,unused-ignore]

from env_service.client import EnvClient

TASKS, GROUP, UPDATES = 8, 8, 2
REPLY_TOKENS, MAX_TURNS = 32, 12
# TRL asks for a template that writes calls out; a call of ours is its text.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + ('user' if message['role'] == 'tool' else message['role']) + '\n' }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ call['function']['arguments']['text'] if 'text' in call['function']['arguments'] "
    "else call['function']['name'] + (call['function']['arguments'] | tojson) }}"
    "{%- endfor -%}"
    "{{ (message['content'] or '') + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
# Worlds in the order in which their next replies are read.
ORDER: deque[World] = deque()


class Clock:
    """Wall seconds by phase, of one step."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Add what the block takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[phase] += time.perf_counter() - began


CLOCK = Clock()


class World:
    """TRL's environment: one instance of the service at a time."""

    client: EnvClient

    def __init__(self) -> None:
        self._name, self._turns, self._over = "", 0, False

    def reset(self, task_id: str, **_: Any) -> None:
        """Open an instance of the task; its opening is the prompt already."""
        with CLOCK.of("environment"):
            self._release()
            self._name, self._turns, self._over = f"trl-{uuid4().hex}", 0, False
            self.client.create_instance("pocket", task_id, self._name)
        ORDER.append(self)

    def act(self, text: str) -> str:
        """Take an action.

        Args:
            text: The action.

        Returns:
            What the world answers.
        """
        with CLOCK.of("environment"):
            action = {"role": "assistant", "content": text}
            answer = self.client.step(self._name, action, step_index=self._turns)
        self._turns += 1
        CLOCK.spent["turns"] += 1
        self._over = bool(answer["is_terminated"]) or self._turns == MAX_TURNS
        ORDER.append(self)
        return "\n".join(str(message["content"]) for message in answer["state"])

    def get_reward(self) -> float:
        """Grade the episode."""
        with CLOCK.of("environment"):
            score = self.client.evaluate(self._name)
            self._release()
        CLOCK.spent["reward"] += score
        return score

    def _release(self) -> None:
        if self._name:
            self.client.release_instance(self._name)
            self._name = ""


class Timed(GRPOTrainer):  # type: ignore[misc,unused-ignore]
    """TRL's trainer with a watch in its hand."""

    out: Path
    began: tuple[float, float] | None = None
    stepped = 0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.lap()
        with CLOCK.of("sample and score"):
            return super()._generate_and_score_completions(inputs)

    def lap(self) -> None:
        """Write what the step before took."""
        now = time.perf_counter(), time.process_time()
        if self.began is not None:
            record: dict[str, Any] = {
                "wall": now[0] - self.began[0],
                "cpu": now[1] - self.began[1],
                "time": time.time(),
                **CLOCK.spent,
            }
            record |= {"threads": torch.get_num_threads(), "dtype": str(self.model.dtype).removeprefix("torch.")}
            record["optimiser steps"] = self.state.global_step - self.stepped
            with self.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.began, self.stepped = now, self.state.global_step
        CLOCK.spent.clear()

    def _generate(self, prompts: Any) -> Any:
        made = super()._generate(prompts)
        CLOCK.spent["rollouts"] += len(made[1])
        CLOCK.spent["prompt tokens"] += sum(len(ids) for ids in made[0])
        CLOCK.spent["completion tokens"] += sum(len(ids) for ids in made[1])
        return made

    def _generate_single_turn(self, *arguments: Any, **options: Any) -> Any:
        with CLOCK.of("generate"):
            made = super()._generate_single_turn(*arguments, **options)
        CLOCK.spent["sampled tokens"] += sum(len(ids) for ids in made[0])
        CLOCK.spent["replies"] += len(made[0])
        return made

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*arguments, **options)
        with CLOCK.of("log-probs"):
            return super()._get_per_token_logps_and_entropies(*arguments, **options)


def tokenizer_of(model: str, single: bool) -> Any:
    """Return the policy's tokenizer; with an environment, one that reads each reply as a call of `act`."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    if single:
        return tokenizer
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_schema = {"type": "object"}

    def parse_response(ids: Any, **_: Any) -> dict[str, Any]:
        world = ORDER.popleft()
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        if world._over:
            return {"role": "assistant", "content": text}
        call = {"type": "function", "function": {"name": "act", "arguments": {"text": text}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    tokenizer.parse_response = parse_response
    return tokenizer


def tasks(client: EnvClient, count: int) -> Dataset:
    """Return training tasks with their openings."""
    names = client.get_env_profile("pocket", "train")
    random.Random(0).shuffle(names)
    rows = []
    for name in (names * (count // len(names) + 1))[:count]:
        opened = client.create_instance("pocket", name, f"trl-{uuid4().hex}")
        messages = [{"role": one["role"], "content": str(one["content"])} for one in opened["state"]]
        client.release_instance(str(opened["info"]["instance_id"]))
        rows.append({"prompt": messages, "task_id": name})
    return Dataset.from_list(rows)


def by_length(completions: list[Any], **_: Any) -> list[float]:
    """Return a reward that needs no environment."""
    return [float(len(one[-1]["content"]) % 2) for one in completions]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--single", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    World.client = EnvClient(options.url)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=TASKS * GROUP // UPDATES,
            steps_per_generation=UPDATES,
            num_generations=GROUP,
            max_steps=UPDATES * options.steps,
            learning_rate=5e-4,
            lr_scheduler_type="constant",
            beta=0.001,
            loss_type="grpo",
            temperature=1.0,
            top_k=0,
            max_completion_length=1024,
            max_tool_calling_iterations=MAX_TURNS,
            generation_kwargs={"max_new_tokens": REPLY_TOKENS},
            model_init_kwargs={"dtype": "float32"},
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
            seed=0,
        )
        trainer = Timed(
            model=options.model,
            args=config,
            processing_class=tokenizer_of(options.model, options.single),
            train_dataset=tasks(World.client, TASKS * options.steps),
            reward_funcs=[by_length] if options.single else None,
            environment_factory=None if options.single else World,
        )
        trainer.out = options.out
        trainer.train()
        trainer.lap()


if __name__ == "__main__":
    main()
