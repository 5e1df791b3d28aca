"""Evaluation of a policy on PocketWorld by sampling: avg@n and best@n, by level and family.

avg@n is the mean success, best@n the share of tasks with a success among n episodes.
`python -m agentevolver.builtin.seed.evaluate --model DIR --split dev --n 4 [--hint]`. One thread, no server.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agentevolver.builtin.seed import seed_policy_path
from agentevolver.builtin.seed.data import open_turn, opening_text
from agentevolver.builtin.seed.demonstrator import with_hint
from agentevolver.builtin.seed.syntax import COMPACT, SYNTAXES, Syntax
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.oracle import hint as true_hint


@dataclass(slots=True)
class Rollout:
    """Sampled episode: token ids, and for each whether it was sampled and its log-probability."""

    task_id: str
    ids: list[int]
    is_action: list[bool]
    logprobs: list[float]
    actions: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    reward: float = 0.0
    dense: float = 0.0
    stop_reason: str = "context_full"


@dataclass(slots=True)
class _Row:
    env: PocketEnv
    out: Rollout
    turn: list[int] = field(default_factory=list)
    over: bool = False


class Sampler:
    """Samples episodes from `model`, which it never changes."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        syntax: Syntax = COMPACT,
        max_turn_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """`max_turn_tokens` ends an assistant turn that does not end itself; `max_tokens` ends an episode; None: as the
        syntax needs."""
        self.model = model
        self.tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)
        self.syntax = syntax
        self.max_turn_tokens = max_turn_tokens or syntax.turn_tokens
        self.max_tokens = max_tokens or syntax.episode_tokens

    @torch.no_grad()
    def sample(
        self,
        task_ids: Sequence[str],
        hints: Sequence[str] | None = None,
        *,
        temperature: float = 1.0,
        params: dict[str, Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> list[Rollout]:
        """One episode for each task id, in order; temperature 0 takes the likeliest token.

        Log-probabilities are at `temperature`.
        """
        rows = [self._start(t, h, params) for t, h in zip(task_ids, hints or [""] * len(task_ids), strict=True)]
        alive = list(rows)
        first = min(len(row.out.ids) for row in rows)
        feed = torch.tensor([row.out.ids[:first] for row in rows])
        cache: Any = None
        position = first - 1
        while alive:
            output = self.model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            logprobs = torch.log_softmax(output.logits[:, -1].float() / (temperature or 1.0), -1)
            chosen = (
                torch.multinomial(logprobs.exp(), 1, generator=generator)
                if temperature
                else logprobs.argmax(-1, keepdim=True)
            )
            values = logprobs.gather(1, chosen)[:, 0].tolist()
            for row, token, value in zip(alive, chosen[:, 0].tolist(), values, strict=True):
                if not row.over and position == len(row.out.ids) - 1:
                    self._take(row, token, value)
            position += 1
            left = [i for i, row in enumerate(alive) if not row.over]
            if len(left) <= 0.75 * len(alive):
                alive = [alive[i] for i in left]
                if alive:
                    cache.batch_select_indices(torch.tensor(left))
            feed = torch.tensor([[row.out.ids[min(position, len(row.out.ids) - 1)]] for row in alive])
        return [row.out for row in rows]

    def _start(self, task_id: str, hint: str, params: dict[str, Any] | None) -> _Row:
        env = PocketEnv(task_id, "sample", {**(params or {}), **self.syntax.env_params})
        messages = env.get_init_state()["state"]
        messages[-1]["content"] = with_hint(messages[-1]["content"], hint)
        ids = self._encode(opening_text(messages, self.syntax))
        return _Row(env, Rollout(task_id, ids, [False] * len(ids), [0.0] * len(ids)))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _take(self, row: _Row, token: int, logprob: float) -> None:
        out = row.out
        out.ids.append(token)
        out.is_action.append(True)
        out.logprobs.append(logprob)
        if token != self.end:
            row.turn.append(token)
            if len(row.turn) < self.max_turn_tokens:
                return
        out.actions.append(self.tokenizer.decode(row.turn))
        result = row.env.step(self.syntax.read(self.tokenizer, row.turn))
        row.turn = []
        out.observations.append("\n".join(message["content"] for message in result["state"]))
        more = ([] if token == self.end else [self.end]) + self._encode(open_turn(result["state"], self.syntax))
        if result["is_terminated"] or len(out.ids) + len(more) + self.max_turn_tokens > self.max_tokens:
            row.over = True
            out.reward = row.env.evaluate()
            out.dense = row.env.evaluate(params={"sparse": False})
            out.stop_reason = result["info"]["stop_reason"] or out.stop_reason
            return
        out.ids += more
        out.is_action += [False] * len(more)
        out.logprobs += [0.0] * len(more)


@dataclass(frozen=True, slots=True)
class Report:
    """Success of each task over its n episodes, and sums over all episodes."""

    split: str
    n: int
    successes: dict[str, int]
    steps: float
    errors: float
    unfinished: float

    @property
    def avg(self) -> float:
        """avg@n: the share of episodes that succeed."""
        return sum(self.successes.values()) / (self.n * len(self.successes))

    @property
    def best(self) -> float:
        """best@n: the share of tasks with at least one success among their n episodes."""
        return sum(s > 0 for s in self.successes.values()) / len(self.successes)

    def by(self, group: str) -> dict[str, float]:
        """avg@n by "level" or "family"."""
        shares: dict[str, list[float]] = defaultdict(list)
        for task_id, successes in self.successes.items():
            family = FAMILIES[task_id.split(".")[0]]
            shares[str(family.level) if group == "level" else family.name].append(successes / self.n)
        return {name: round(sum(v) / len(v), 3) for name, v in shares.items()}

    def summary(self) -> dict[str, Any]:
        """The numbers in JSON-ready form, families left out."""
        return {
            f"avg@{self.n}": round(self.avg, 3),
            f"best@{self.n}": round(self.best, 3),
            "by level": self.by("level"),
            "steps": round(self.steps, 2),
            "errors": round(self.errors, 2),
            "unfinished": round(self.unfinished, 3),
        }


def evaluate(
    model: Any,
    tokenizer: Any,
    split: str = "dev",
    *,
    n: int = 4,
    hint: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
    batch: int = 288,
    params: dict[str, Any] | None = None,
    syntax: Syntax = COMPACT,
) -> Report:
    """Sample `n` episodes of each task of a split (or of `tasks`); `hint` shows each the true hint of its site."""
    import torch

    from agentevolver.builtin.seed.evaluate import Sampler

    tasks = list(tasks or PocketEnv.get_query_list(split))
    sampler, generator = Sampler(model, tokenizer, syntax=syntax), torch.Generator().manual_seed(seed)
    episodes = [task_id for task_id in tasks for _ in range(n)]
    rollouts: list[Rollout] = []
    for i in range(0, len(episodes), batch):
        part = episodes[i : i + batch]
        hints = [true_hint(t) if hint else "" for t in part]
        rollouts += sampler.sample(part, hints, temperature=temperature, params=params, generator=generator)
    successes = dict.fromkeys(tasks, 0)
    for rollout in rollouts:
        successes[rollout.task_id] += int(rollout.reward == 1.0)
    return Report(
        split,
        n,
        successes,
        steps=sum(len(r.actions) for r in rollouts) / len(rollouts),
        errors=sum(o.startswith("err") for r in rollouts for o in r.observations) / len(rollouts),
        unfinished=sum(r.stop_reason != "finished" for r in rollouts) / len(rollouts),
    )


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.builtin.seed.evaluate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", help="folder of a model and tokenizer; the shipped seed policy unless given")
    parser.add_argument("--syntax", default="compact", choices=SYNTAXES, help="how the model writes calls")
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test", "hard"))
    parser.add_argument("--n", type=int, default=4, help="episodes a task")
    parser.add_argument("--hint", action="store_true", help="show each task the true hint of its site")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--slack", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    path = args.model or str(seed_policy_path())
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    report = evaluate(
        model,
        AutoTokenizer.from_pretrained(path),
        args.split,
        n=args.n,
        hint=args.hint,
        temperature=args.temperature,
        seed=args.seed,
        params={"slack": args.slack},
        syntax=SYNTAXES[args.syntax],
    )
    for key, value in report.summary().items():
        print(f"{key}: {value}")
    print("by family:", report.by("family"))


if __name__ == "__main__":
    main()
