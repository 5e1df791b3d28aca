"""The seed policy's tokenizer: byte-level BPE with ChatML, made from a corpus.

Guarantees: any text round-trips byte for byte; a digit is always a token of its own, and so is a line break. Since no
    token reaches
across a line break or a special token, the ids of a conversation are the ids of its turns put one after the other
(`open_turn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from env_service.base import Message

PAD, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (PAD, TURN, END)
VOCAB_SIZE = 768
MAX_LENGTH = 2048
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
# A word with the one mark or space before it, a digit, a run of marks, a line break, a run of other space.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]|[^\S\r\n]+(?!\S)|[^\S\r\n]+"


def build_tokenizer(corpus: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Learn merges from a corpus; raises ValueError if the corpus is too poor to fill `vocab_size` exactly."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}; give more text or a smaller size"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def opening_text(messages: Sequence[Message]) -> str:
    """The text of the opening messages up to where the first assistant turn is sampled."""
    return "".join(f"{TURN}{m['role']}\n{m['content']}{END}\n" for m in messages) + f"{TURN}assistant\n"


def open_turn(observation: str) -> str:
    """The text between the `<|im_end|>` that closed an assistant turn and where the next one is sampled."""
    return f"\n{TURN}user\n{observation}{END}\n{TURN}assistant\n"


def pieces(messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """A conversation as (text, is the assistant's) pieces, exactly what the chat template renders up to its last
    assistant turn.

    The opening messages come before the first assistant message; afterwards assistant and user take turns. Raises
    ValueError otherwise.
    """
    first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    out = [(opening_text(messages[:first]), False)]
    for i, message in enumerate(messages[first:]):
        if message["role"] != ("assistant", "user")[i % 2]:
            raise ValueError(f"message {first + i} has role {message['role']!r}: assistant and user must take turns")
        out.append((message["content"] + END, True) if i % 2 == 0 else (open_turn(message["content"]), False))
    return out
