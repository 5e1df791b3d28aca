"""Calls written as a model of a family writes them: through the family's real chat template (or Mistral's own encoder)
where there is one, else by hand after verl's or vLLM's parser.

`write(name, calls)` gives the text of a reply by the name of a format; `WRITERS` has every family that was tried.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mistral_common.protocol.instruct.messages import AssistantMessage
from mistral_common.protocol.instruct.tool_calls import FunctionCall
from mistral_common.protocol.instruct.tool_calls import ToolCall as MistralCall
from mistral_common.tokens.tokenizers import instruct
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, TokenizerVersion
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.real_tokenizers import FAMILIES, Family, build_family, package_file
from tests.tools_of_families import TOOL_FAMILIES

Call = tuple[str, Mapping[str, Any]]
_DEEPSEEK = tuple(f"<\uff5ctool\u2581{name}\uff5c>" for name in ("call\u2581begin", "call\u2581end", "sep"))
_GEMMA4 = ("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
_QWEN3, _DEEPSEEK_V3 = FAMILIES["qwen3"], FAMILIES["deepseekv3"]
_FAMILIES = {
    **TOOL_FAMILIES,
    "qwen3_6": replace(_QWEN3, template="qwen3_6"),
    "nemotron_3_nano": replace(_QWEN3, template="nemotron_3_nano"),
    "gemma4": Family("gemma4", "<turn|>", ("<pad>", *_GEMMA4)),
    "deepseekv3": replace(_DEEPSEEK_V3, added=(*_DEEPSEEK_V3.added, *_DEEPSEEK)),
}


@functools.cache
def template_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Return a real template over the family's control tokens and bytes."""
    return build_family(_FAMILIES[template])


@dataclass(frozen=True)
class Writer:
    """A family: the format that reads it, its tokenizer, and how it writes calls.

    Args:
        format: a name of `TOOL_FORMATS`.
        tokenizer: makes it.
        text: the reply of some calls after some words, with the token that ends it where the template writes one.
        several: whether the family can write several calls in a reply.
        words: whether it can write words before a call.
        real: whether the text comes from the family's own template or encoder.
        encoder: writes the reply as ids, where the family has an encoder of its own.
    """

    format: str
    tokenizer: Callable[[], Any]
    text: Callable[[Sequence[Call], str], str]
    several: bool = True
    words: bool = True
    real: bool = True
    encoder: Callable[[Sequence[Call], str], list[int]] | None = None

    def ids(self, calls: Sequence[Call], words: str = "") -> list[int]:
        """Return the reply as ids."""
        if self.encoder is not None:
            return self.encoder(calls, words)
        return list(self.tokenizer().encode(self.text(calls, words), add_special_tokens=False))


def _openai(call: Call, place: int, *, as_text: bool) -> dict[str, Any]:
    name, arguments = call
    given = json.dumps(arguments, ensure_ascii=False) if as_text else dict(arguments)
    return {"id": f"c00001{place:03d}", "type": "function", "function": {"name": name, "arguments": given}}


def by_template(template: str, calls: Sequence[Call], words: str, *, as_text: bool = False) -> str:
    """Return what a template writes between the generation prompt and the next message."""
    tokenizer = template_tokenizer(template)
    user = {"role": "user", "content": "go"}
    reply = {
        "role": "assistant",
        "content": words,
        "tool_calls": [_openai(call, place, as_text=as_text) for place, call in enumerate(calls)],
    }
    prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([user, reply], tokenize=False)
    if not whole.startswith(prompt):  # it writes another opening of past turns
        opened = prompt.rindex("<think>")
        assert template in ("deepseekv3", "nemotron_3_nano") and whole.startswith(prompt[:opened])
        prompt = prompt[:opened]
    return whole[len(prompt) :].removesuffix("\n")


def _single(template: str, joint: str) -> Callable[[Sequence[Call], str], str]:
    """A template that writes one call a message: several are joined as the family's documents say."""

    def text(calls: Sequence[Call], words: str) -> str:
        parts = [by_template(template, [call], words if not place else "") for place, call in enumerate(calls)]
        end = template_tokenizer(template).eos_token if joint == ";" else ""
        return joint.join([*(part.removesuffix(end) for part in parts[:-1]), parts[-1]])

    return text


def _template(name: str, *, as_text: bool = False) -> Callable[[Sequence[Call], str], str]:
    return lambda calls, words: by_template(name, calls, words, as_text=as_text)


class MistralIds:
    """One of Mistral's own tokenizers, as far as it is used of a Hugging Face one."""

    def __init__(self, version: str) -> None:
        self.encoder = _MISTRALS[version]()
        self.inner = self.encoder.tokenizer
        special = range(100) if isinstance(self.inner, Tekkenizer) else range(30)
        pieces = {i: self.inner.id_to_piece(i) for i in special}
        self.added_tokens_decoder = {
            i: AddedToken(piece, special=True) for i, piece in pieces.items() if piece[:1] in "<[" and len(piece) > 1
        }
        self._ids = {token.content: i for i, token in self.added_tokens_decoder.items()}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        parts, run = [], []
        for i in ids:
            if i not in self.added_tokens_decoder:
                run.append(i)
                continue
            parts += [self._plain(run), "" if skip_special_tokens else self.added_tokens_decoder[i].content]
            run = []
        return "".join([*parts, self._plain(run)])

    def _plain(self, ids: list[int]) -> str:
        return str(self.inner.decode(ids, special_token_policy=SpecialTokenPolicy.IGNORE)) if ids else ""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text in which control tokens are spelled out."""
        ids: list[int] = []
        while text:
            found = min(
                (place, tag) for tag in (*self._ids, "") if (place := text.find(tag) if tag else len(text)) >= 0
            )
            ids += self.inner.encode(text[: found[0]], bos=False, eos=False) if found[0] else []
            ids += [self._ids[found[1]]] if found[1] else []
            text = text[found[0] + len(found[1]) :]
        return ids

    def written(self, calls: Sequence[Call], words: str) -> list[int]:
        """Return a reply as Mistral's encoder writes it."""
        made = [
            MistralCall(
                id=f"c00001{place:03d}",
                function=FunctionCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),
            )
            for place, (name, arguments) in enumerate(calls)
        ]
        message = AssistantMessage(content=words or None, tool_calls=made)
        return list(self.encoder.encode_assistant_message(message, is_before_last_user_message=False))


def _tekken(version: str) -> Any:
    """The vocabulary of 2024 with the control tokens of 2025: the later one is not shipped."""
    data = json.loads(package_file("mistral_common", "data", "tekken_240911.json").read_text(encoding="utf-8"))
    special = [dict(token) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    special += [
        {"rank": len(special) + place, "token_str": text, "is_control": True}
        for place, text in enumerate(("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"))
    ]
    config = data["config"]
    number = config["default_num_special_tokens"]
    inner = Tekkenizer(
        vocab=data["vocab"],
        special_tokens=special,
        pattern=config["pattern"],
        vocab_size=config["default_vocab_size"],
        num_special_tokens=number,
        version=TokenizerVersion(version),
    )
    return getattr(instruct, f"InstructTokenizer{version.upper()}")(inner)


_MISTRALS: dict[str, Callable[[], Any]] = {
    "v2": lambda: MistralTokenizer.v2().instruct_tokenizer,
    "v3": lambda: MistralTokenizer.v3().instruct_tokenizer,
    "v7": lambda: MistralTokenizer.v7().instruct_tokenizer,
    "v3_tekken": lambda: MistralTokenizer.v3(is_tekken=True).instruct_tokenizer,
    "v11": lambda: _tekken("v11"),
    "v13": lambda: _tekken("v13"),
}


@functools.cache
def mistral_ids(version: str) -> MistralIds:
    return MistralIds(version)


def _mistral(version: str) -> Writer:
    def text(calls: Sequence[Call], words: str) -> str:
        tokenizer = mistral_ids(version)
        return tokenizer.decode(tokenizer.written(calls, words))

    # Until v7 a message has words or calls.
    words = version not in ("v2", "v3", "v3_tekken")
    return Writer(
        "mistral",
        lambda: mistral_ids(version),
        text,
        words=words,
        encoder=lambda calls, words: mistral_ids(version).written(calls, words),
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kimi(calls: Sequence[Call], words: str) -> str:
    body = "".join(
        f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{_json(given)}<|tool_call_end|>"
        for place, (name, given) in enumerate(calls)
    )
    return f"{words}<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def _deepseek_v31(calls: Sequence[Call], words: str) -> str:
    begin, end, sep = _DEEPSEEK
    body = "".join(f"{begin}{name}{sep}{_json(given)}{end}" for name, given in calls)
    return f"{words}<\uff5ctool\u2581calls\u2581begin\uff5c>{body}<\uff5ctool\u2581calls\u2581end\uff5c>"


def _seed(calls: Sequence[Call], words: str) -> str:
    return words + "".join(
        f"<seed:tool_call><function={name}>"
        + "".join(f"<parameter={key}>{_bare(value)}</parameter>" for key, value in given.items())
        + "</function></seed:tool_call>"
        for name, given in calls
    )


def _minimax(calls: Sequence[Call], words: str) -> str:
    body = "".join(
        f'<invoke name="{name}">'
        + "".join(f'<parameter name="{key}">{_bare(value)}</parameter>' for key, value in given.items())
        + "</invoke>"
        for name, given in calls
    )
    return f"{words}<minimax:tool_call>{body}</minimax:tool_call>"


def _deepseek_v4(calls: Sequence[Call], words: str) -> str:
    tag = "\uff5cDSML\uff5c"
    body = "".join(
        f'<{tag}invoke name="{name}">'
        + "".join(
            f'<{tag}parameter name="{key}" string="{_json(isinstance(value, str))}">{_bare(value)}</{tag}parameter>'
            for key, value in given.items()
        )
        + f"</{tag}invoke>"
        for name, given in calls
    )
    return f"{words}<{tag}tool_calls>{body}</{tag}tool_calls>"


def _by_hand(name: str, text: Callable[[Sequence[Call], str], str], template: str = "qwen3") -> Writer:
    return Writer(name, lambda: template_tokenizer(template), text, real=False)


def _of_template(name: str, template: str) -> Writer:
    return Writer(name, lambda: template_tokenizer(template), _template(template))


WRITERS: dict[str, Writer] = {
    "qwen2_5": _of_template("hermes", "qwen2_5"),
    "qwen3": _of_template("hermes", "qwen3"),
    "qwen3_instruct_2507": _of_template("hermes", "qwen3_instruct_2507"),
    "qwen3_5_think": _of_template("qwen3_coder", "qwen3_5_think"),
    "qwen3_5_nothink": _of_template("qwen3_coder", "qwen3_5_nothink"),
    "qwen3_6": _of_template("qwen3_coder", "qwen3_6"),
    "nemotron_3_nano": _of_template("qwen3_coder", "nemotron_3_nano"),
    "llama3_1": Writer("llama3", lambda: template_tokenizer("llama3_1"), _single("llama3_1", ";"), words=False),
    "llama3_2": Writer("llama3", lambda: template_tokenizer("llama3_2"), _single("llama3_2", ";"), words=False),
    "glm4moe": _of_template("glm", "glm4moe"),
    "gptoss": Writer(
        "gpt_oss", lambda: template_tokenizer("gptoss"), _single("gptoss", "<|start|>assistant"), words=False
    ),
    "deepseekv3": Writer("deepseek", lambda: template_tokenizer("deepseekv3"), _template("deepseekv3", as_text=True)),
    **{f"mistral_{version}": _mistral(version) for version in _MISTRALS},
    "deepseek_v3_1": _by_hand("deepseek", _deepseek_v31, "deepseekv3"),
    "kimi_k2": _by_hand("kimi", _kimi),
    "seed_oss": _by_hand("seed", _seed),
    "minimax_m2": _by_hand("minimax", _minimax),
    "deepseek_v4": _by_hand("deepseek_v4", _deepseek_v4),
}


def writer(name: str) -> Writer:
    """Return the first family of a format."""
    return next(found for found in WRITERS.values() if found.format == name)


def write(name: str, calls: Sequence[Call], words: str = "") -> str:
    """Return the reply in which a model of a format's family writes some calls, after some words."""
    return writer(name).text(calls, words)
