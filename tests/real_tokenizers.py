"""Chat templates as model families ship them (PyPI `trl`), over their real control tokens.

The vocabulary under them is bytes, or Qwen2.5's (PyPI `dashscope`): enough for control tokens and structure; token
counts are right for Qwen alone.
"""

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Family:
    """A template (its file, or its text), what its tokenizer calls special, and what it has added without calling it
    so."""

    template: str
    eos: str
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    bos: str | None = None


_CHATML = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
FAMILIES = {
    "qwen2_5": Family(
        "qwen2_5",
        "<|im_end|>",
        _CHATML,
        ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|repo_name|>", "<|file_sep|>"),
    ),
    "qwen3": Family(
        "qwen3",
        "<|im_end|>",
        _CHATML,
        ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<|file_sep|>"),
    ),
    "llama3_1": Family(
        "llama3_1",
        "<|eot_id|>",
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
        ),
    ),
    "deepseekv3": Family(
        "deepseekv3",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
        # DeepSeek calls its turns' tokens not special.
        (
            "<\uff5cUser\uff5c>",
            "<\uff5cAssistant\uff5c>",
            "<\uff5ctool\u2581calls\u2581begin\uff5c>",
            "<\uff5ctool\u2581calls\u2581end\uff5c>",
            "<\uff5ctool\u2581outputs\u2581begin\uff5c>",
            "<think>",
            "</think>",
        ),
    ),
    "glm4moe": Family(
        "glm4moe",
        "<|user|>",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "gemma3": Family(
        "gemma3", "<end_of_turn>", ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>")
    ),
    "phi3_5": Family("phi3_5", "<|end|>", ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")),
}


def package_file(package: str, *path: str) -> Path:
    """Return a file of an installed package, which is not imported for it."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations, (
        f"{package} is not installed: it is in requirements/dev.lock"
    )
    return Path(found.submodule_search_locations[0], *path)


def real_template(name: str) -> str:
    return package_file("trl", "chat_templates", f"{name}.jinja").read_text(encoding="utf-8")


def build_real(name: str, vocabulary: Literal["bytes", "qwen"] = "bytes") -> PreTrainedTokenizerFast:
    return build_family(FAMILIES[name], vocabulary)


@functools.cache
def build_family(family: Family, vocabulary: Literal["bytes", "qwen"] = "bytes") -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_str(_qwen() if vocabulary == "qwen" else _bytes())
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=family.eos,
        pad_token=family.special[0],
        bos_token=family.bos,
        chat_template=family.template if "{" in family.template else real_template(family.template),
    )


def _bytes() -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


@functools.cache
def _qwen() -> str:
    """Qwen2.5's vocabulary; seven seconds."""
    ranks = package_file("dashscope", "resources", "qwen.tiktoken")
    return TikTokenConverter(vocab_file=str(ranks), pattern=_QWEN_WORDS).converted().to_str()
