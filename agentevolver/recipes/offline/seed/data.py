"""Training data and tokenizer of a seed policy: demonstrations as token ids with a mask, byte-level BPE with ChatML.

A seed reproduces both. Any text round-trips byte for byte, and each digit is a token. No token crosses a special token
or a turn, so the ids of a conversation are the concatenated ids of its turns (`open_turn`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentevolver.recipes.offline.seed.demonstrator import Habits, demonstrate, phrases
from agentevolver.recipes.offline.seed.syntax import COMPACT, END, PAD, SPECIALS, TURN, Syntax
from env_service.base import Message
from env_service.environments.pocket.calls import SYNTAXES
from env_service.environments.pocket.families import FAMILIES
from env_service.environments.pocket.prompts import opening
from env_service.environments.pocket.quirks import N_SITES

VOCAB_SIZE = 768
MAX_LENGTH = 2048


def build_tokenizer(
    corpus: Iterable[str], vocab_size: int = VOCAB_SIZE, syntax: Syntax = COMPACT, *, exact: bool = True
) -> PreTrainedTokenizerFast:
    """Learn merges from a corpus. Raises ValueError if `exact` and the corpus cannot fill `vocab_size`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(syntax.split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS) - len(syntax.tags),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in syntax.tags])
    if exact and tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}; give more text or a smaller size"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=syntax.chat_template,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def opening_text(messages: Sequence[Message], syntax: Syntax = COMPACT) -> str:
    """Return the text of the opening messages up to where the first assistant turn is sampled."""
    return f"{syntax.opened(messages)}{TURN}assistant\n"


def open_turn(answer: Sequence[Message], syntax: Syntax = COMPACT) -> str:
    """Return the text between an assistant turn's `<|im_end|>` and where the next turn is sampled."""
    return f"\n{syntax.answered(answer)}{TURN}assistant\n"


def pieces(messages: Sequence[Message], syntax: Syntax = COMPACT) -> list[tuple[str, bool]]:
    """Return a conversation as (text, is the assistant's) pieces; joined they equal the chat template's text up to the
    last assistant turn.

    After the opening messages, assistant and world must take turns; raises ValueError otherwise.
    """
    turns = [(mine, list(group)) for mine, group in itertools.groupby(messages, lambda m: m["role"] == "assistant")]
    first = turns[0][1] if turns and not turns[0][0] else []
    out = [(opening_text(first, syntax), False)]
    for mine, group in turns[1:] if first else turns:
        if mine and len(group) > 1:
            raise ValueError(f"{len(group)} assistant messages in a row: the assistant and the world must take turns")
        out.append((syntax.said(group[0]) + END, True) if mine else (open_turn(group, syntax), False))
    return out


# Demonstrations use the upper end of the train seeds, so RL never trains on a demonstrated task.
FIRST_SEED = 20_000
N_SEEDS = 30_000


@dataclass(frozen=True, slots=True)
class SeedExample:
    """A conversation's ids, and whether the assistant wrote each (`<|im_end|>` included)."""

    ids: list[int]
    is_action: list[bool]


def draw_task_id(rng: random.Random, site: int | None = None) -> str:
    """Draw a task, of any site by default, that is in no split of usual size; harder levels are more frequent.

    Demonstrations show a made-up site name (`demonstrate`), so that no name gives quirks away.
    """
    (family,) = rng.choices(_FAMILIES, _SHARES)
    return f"{family}.k{rng.randrange(N_SITES) if site is None else site}.{FIRST_SEED + rng.randrange(N_SEEDS)}"


_FAMILIES = sorted(FAMILIES)
_SHARES = [{1: 0.6, 2: 1.0, 3: 1.4, 4: 1.4}[FAMILIES[name].level] for name in _FAMILIES]


def corpus(seed: int, n: int = 4000, syntax: Syntax = COMPACT) -> list[str]:
    rng = random.Random(f"seed-corpus-{seed}")
    texts = [syntax.said(m) for _ in range(n) for m in demonstrate(draw_task_id(rng), rng, Habits(), syntax)]
    for tag in syntax.tags:
        texts = [text.replace(tag, "") for text in texts]
    roles = ["system\n", "user\n", "assistant\n"] * n
    manual = [m["content"] for form in SYNTAXES for m in opening(0, None, syntax=form, verbose=True, manual=True)]
    return texts + roles + phrases() * 10 + manual * 5


def examples(tokenizer: Any, seed: int, habits: Habits, syntax: Syntax = COMPACT) -> Iterator[SeedExample]:
    rng = random.Random(f"seed-data-{seed}")
    return endless(tokenizer, lambda: demonstrate(draw_task_id(rng), rng, habits, syntax), syntax)


def endless(tokenizer: Any, show: Callable[[], Sequence[Message]], syntax: Syntax = COMPACT) -> Iterator[SeedExample]:
    while True:
        yield from encode(tokenizer, [show() for _ in range(256)], syntax)


def encode(
    tokenizer: Any, conversations: Sequence[Sequence[Message]], syntax: Syntax = COMPACT
) -> Iterator[SeedExample]:
    cut = [pieces(conversation, syntax) for conversation in conversations]
    encoded = iter(tokenizer([text for c in cut for text, _ in c], add_special_tokens=False)["input_ids"])
    for conversation in cut:
        ids: list[int] = []
        is_action: list[bool] = []
        for (_, mine), piece in zip(conversation, encoded, strict=False):
            ids += piece
            is_action += [mine] * len(piece)
        yield SeedExample(ids, is_action)
