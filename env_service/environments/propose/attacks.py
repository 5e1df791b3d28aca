"""Attacks in the text of a proposal; each kind has a name.

These checks are no security boundary: programs run in the sandbox of their world, and a question only reaches a policy
inside that sandbox.
"""

from __future__ import annotations

import re
import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co"}
_ALLOWED = {"\n", "\t", "\r"}

_MARKERS = re.compile(
    r"<\|[^<>\n]{0,60}\|>"  # <|im_start|>, <|endoftext|>
    r"|<\W?(?:begin|end)\W?of\W?\w{1,20}\W?>|<(?:start|end)_of_turn>|</?s>|<(?:bos|eos|pad|unk)>"
    r"|\[/?INST\]|<</?SYS>>"
    r"|</?\s*(?:tool_call|tool_response|tools?|function_call|function_response|observation|output|think|system|user"
    r"|assistant|python|code_interpreter|interpreter)\b[^<>\n]{0,60}>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```|~~~")
_TURN = re.compile(
    r"^[ \t#*>]*(?:(?:assistant|human|user|ai)[ \t*]*:|system[ \t*]*:[ \t]*(?:you|ignore|from now)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget)\b[^.\n]{0,40}\b(?:instructions?|prompts?|messages?|rules)\b", re.IGNORECASE
)

_PATHS = re.compile(
    r"(?<![\w/])/(?:etc|proc|home|root|var|usr|sys|dev|tmp|mnt|opt|boot|scratch)/[\w./-]+"
    r"|(?<![\w/.])\.\./\S*|(?<!\w)~/\w\S*|\b[A-Za-z]:\\\w\S*|\bfile://\S*",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"\bopen\s*\(\s*[rbf]?[\"']|\bos\.(?:environ|getenv|listdir|system|popen|walk|path)\b"
    r"|\b(?:listdir|read_text|read_csv|scandir)\s*\("
)
_FILE = (
    r"(?:\w+\s+)?(?:files?|director(?:y|ies)|file\s*system|environment\s+variables?)\b"
    r"(?!\s+(?:cabinet|folder|card|drawer|transfer|size))"
)
_READING = re.compile(
    # An order at the beginning of a sentence: `Ann read the file` and `It takes 3 s to print a file` are none.
    r"(?:^|[.!?;:\n]\s*|\b(?:please|then|task is to|and)\s+)"
    r"(?:read|open|load|list|print|show|cat|dump|return|display|access)\s+"
    r"(?:me\s+|out\s+|all\s+|every\s+|the\s+|a\s+|your\s+|any\s+|this\s+|each\s+|local\s+|hidden\s+){1,3}"
    + _FILE
    + r"|\bcontents?\s+of\s+(?:the|a|your|any|this|that|all|each)\s+"
    + _FILE
    + r"|\b(?:read|open|load|cat|parse|download)\b[^.\n]{0,40}?\b[\w-]+\."
    r"(?:txt|csv|jsonl?|py|log|env|pem|key|ya?ml|parquet|db)\b"
    r"|\b(?:working|current|home|root|parent)\s+director(?:y|ies)\b|\benvironment\s+variables?\b",
    re.IGNORECASE,
)
_MODULES = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(?:[\w., \t]*,[ \t]*)?"
    r"(?:os|pathlib|shutil|subprocess|socket|glob|tempfile|urllib|http|requests|ctypes|importlib|multiprocessing"
    r"|fileinput|mmap|sqlite3)\b|\b__import__\s*\(|(?<![.\w])open\s*\(",
    re.MULTILINE,
)

_SAYS = re.compile(
    r"\banswers?\b(?:[ \t]+(?:to|of|for)[ \t]+(?:this|the|that|it)(?:[ \t]+\w+){0,2}?)?\W{0,3}"
    r"(?:\bis\b|\bequals\b|\bare\b|\bwas\b|:|=)[ \t]*\$?|\bsolution[ \t]*:[ \t]*\$?",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_VALUE = re.compile(r"[-+]?\d")


def hidden_character(text: str) -> str:
    """Return the first invisible character (control, format, private use) as `U+202E`, or ""."""
    for character in text:
        if character not in _ALLOWED and unicodedata.category(character) in _HIDDEN:
            return f"U+{ord(character):04X}"
    return ""


def chat_marker(text: str) -> str:
    """Return the first text that imitates a chat turn or a tool's answer, or ""."""
    found = _MARKERS.search(unicodedata.normalize("NFKC", text))
    return found[0] if found else ""


def forged(text: str) -> str:
    """Return the first text that imitates more than a question (chat marker, fence, another speaker's turn, order to
    ignore the rules), or ""."""
    plain = unicodedata.normalize("NFKC", text)
    for pattern in (_MARKERS, _FENCE, _TURN, _ORDERS):
        if found := pattern.search(plain):
            return found[0].strip()
    return ""


def file_access(text: str) -> str:
    """Return the first request for files of the machine (a path, a call that opens one, an order to read one), or "".
    `Ann files a complaint` is none."""
    plain = unicodedata.normalize("NFKC", text)
    for pattern in (_PATHS, _OPENING, _READING):
        if found := pattern.search(plain):
            return found[0].strip()
    return ""


def program_access(program: str) -> str:
    for pattern in (_MODULES, _OPENING):
        if found := pattern.search(program):
            return found[0].strip()
    return ""


def told_answer(question: str, answer: str | None) -> str:
    """Return the place where a question reveals its answer (`Answer: 7`, a box), or "". The answer's number elsewhere
    in the text is allowed."""
    plain = unicodedata.normalize("NFKC", question)
    wanted = _squeezed(answer)
    for found in _BOXED.finditer(plain):
        if _squeezed(found[1]) == wanted if wanted else _VALUE.match(found[1].strip()):
            return found[0]
    for found in _SAYS.finditer(plain):
        rest = plain[found.end() : found.end() + 400]
        if _begins_with(rest, wanted) if wanted else _VALUE.match(rest):
            return found[0].strip() + " ..."
    return ""


def _begins_with(rest: str, wanted: str) -> bool:
    """Whether a text begins with the whole answer, but not with a choice (`yes or no`)."""
    squeezed = _squeezed(rest)
    after = squeezed[len(wanted) :]
    if not squeezed.startswith(wanted) or re.match(r"[./,]?\d", after):
        return False
    if wanted[-1].isalpha() and after[:1].isalpha():  # a longer word, or words after it, which are squeezed together
        return bool(re.match(re.escape(wanted) + r"\b(?![ \t]+or\b)", rest.strip(" \t$*").casefold()))
    return not (wanted[-1].isalpha() and after[:1] in ("/", ","))


def _squeezed(text: str | None) -> str:
    return re.sub(r"[\s$*]+", "", text or "").casefold()
