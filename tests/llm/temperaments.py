"""How a language model's server misbehaves: each way with its share of the replies, under a name; ways can be combined.

All is drawn anew for each try, so that asking again may help, but for half of what a content filter stops: it takes the
same prompts whenever they come. All draws follow from the seed, what is asked, and how often it came.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Temper:
    """Shares of replies (0 to 1) and limits.

    - `fences`: JSON in a Markdown fence, with and without its language.
    - `prose`: a sentence before the JSON and one after it.
    - `thinking`: `<think>` in the content, or `reasoning_content` beside it; `exhausted`: all tokens went into the
        thinking.
    - `cut`: the reply ends in the middle; half of these say so (`finish_reason` length).
    - `refusals`: a polite refusal in the place of an answer.
    - `requests`: of a window of `window_s` seconds; what comes beyond is 429, with `Retry-After` if `retry_after`. 0:
        no limit.
    - `outages`: 502 with an HTML page, an HTML page under 200, or a connection that is reset.
    - `filtered`: what a content filter stops: half of it are prompts (400), half replies (empty, `finish_reason`
        content_filter).
    - `latency_s`: seconds that a reply takes, from the first to the second number.
    - `tools`: a native tool call with `content` null.
    - `shapes`: JSON of another shape than asked for, with the same meaning: the bare list, the object in a list, words
        for numbers,
      a text for a list, keys nobody asked for.
    """

    fences: float = 0.0
    prose: float = 0.0
    thinking: float = 0.0
    exhausted: float = 0.0
    cut: float = 0.0
    refusals: float = 0.0
    requests: int = 0
    window_s: float = 60.0
    retry_after: bool = False
    outages: float = 0.0
    filtered: float = 0.0
    latency_s: tuple[float, float] = (0.0, 0.0)
    tools: float = 0.0
    shapes: float = 0.0

    def __or__(self, other: Temper) -> Temper:
        """Return both at once: what the other sets is laid over this."""
        default = Temper()
        changed = {
            f.name: getattr(other, f.name) for f in fields(other) if getattr(other, f.name) != getattr(default, f.name)
        }
        return replace(self, **changed)


TEMPERS: dict[str, Temper] = {
    "calm": Temper(),
    "limits": Temper(requests=90),
    # What an ordinary paid endpoint does on an ordinary day.
    "mild": Temper(
        fences=0.3, prose=0.1, thinking=0.1, exhausted=0.002, cut=0.01, refusals=0.005, requests=600, outages=0.01,
        filtered=0.002,
        tools=0.03, shapes=0.1,
    ),
}  # fmt: skip


def read_temper(text: str) -> Temper:
    """Return the temper of a description like `mild` or `limits+outages=0.1+window_s=1`; raises
    ValueError."""
    temper = Temper()
    for part in text.split("+"):
        name, _, value = part.partition("=")
        if not value:
            if name not in TEMPERS:
                raise ValueError(f"there is no temper {name!r}; tempers are {', '.join(TEMPERS)}")
            temper |= TEMPERS[name]
        else:
            temper = replace(temper, **{name: _value(name, value)})
    return temper


def _value(name: str, text: str) -> object:
    default = Temper()
    if name not in {field.name for field in fields(Temper)}:
        raise ValueError(
            f"{name!r} is nothing that a temper has; it has {', '.join(field.name for field in fields(Temper))}"
        )
    if name == "latency_s":
        least, _, most = text.partition("-")
        return float(least), float(most or least)
    if name == "retry_after":
        return text.lower() in ("1", "true", "yes")
    return type(getattr(default, name))(text)
