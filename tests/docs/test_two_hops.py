"""Two hops: the table of questions in docs/architecture.md names files and symbols that exist, docs/concepts.md
links to each question, and a search for its words over the sources finds that file first.

The search is BM25 over paths, docstrings and the names that a file defines. It knows no question.
"""

import ast
import functools
import math
import re
from collections import Counter

import pytest

from tests.docs.packages import PACKAGES, ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "into",
        "is",
        "it",
        "of",
        "on",
        "or",
        "that",
        "the",
        "to",
        "which",
        "who",
        "with",
    ]
)
# The usual constants of BM25.
K1, B = 1.2, 0.75


def rows():
    """The table: question, its anchor, path and dotted symbol."""
    return re.findall(r'^\| <a id="([\w-]+)"></a>(.+?) \| `([\w/.]+\.py):([\w.]+)` \|', ARCHITECTURE, re.MULTILINE)


ROWS = rows()


def stem(word):
    """A word without its ending, so that strip, strips, stripped and stripping are one."""
    for ending in ("ication", "ation", "ings", "ing", "ies", "ied", "ers", "ed", "er", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2] and (word[-1] not in "ls" or len(word) > 5):
        return word[:-1]
    return word


def words(text):
    """The stems of a text; names are taken apart at underscores and capitals."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower()
    return [stem(word) for word in re.findall(r"[a-z]+", apart) if word not in STOP_WORDS]


def definitions(tree):
    """Every class and function, by its dotted name."""
    found = {}

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found[prefix + child.name] = child
                walk(child, f"{prefix}{child.name}.")

    walk(tree, "")
    return found


@functools.cache
def sources():
    """Each source file's bag of words."""
    bags = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts = [name.removesuffix(".py"), ast.get_docstring(tree) or ""]
            for symbol, node in definitions(tree).items():
                texts += [symbol.rpartition(".")[2], ast.get_docstring(node) or ""]
            bags[name] = Counter(words(" ".join(texts)))
    return bags


def search(query):
    """The files in the order in which they answer a query, best first, each with its BM25 score."""
    bags = sources()
    length = sum(map(Counter.total, bags.values())) / len(bags)
    scores = Counter()
    for term in set(words(query)):
        holders = sum(term in bag for bag in bags.values())
        weight = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
        for name, bag in bags.items():
            norm = K1 * (1 - B + B * bag.total() / length)
            scores[name] += weight * bag[term] * (K1 + 1) / (bag[term] + norm)
    return scores.most_common()


def test_the_table_holds_the_ten_questions():
    assert len(ROWS) >= 10 and len({anchor for anchor, *_ in ROWS}) == len(ROWS)


@pytest.mark.thorough
@pytest.mark.parametrize(("anchor", "question", "path", "symbol"), ROWS, ids=[row[0] for row in ROWS])
def test_a_question_is_answered_by_one_link_and_one_symbol(anchor, question, path, symbol):
    assert f"(architecture.md#{anchor})" in CONCEPTS
    assert symbol in definitions(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    found = search(question)[:5]
    assert found[0][0] == path, found


def test_words_in_their_forms_have_one_stem():
    assert {stem(word) for word in ("strip", "strips", "stripped", "stripping")} == {"strip"}
    assert {stem(word) for word in ("label", "labels", "labelling", "labelled")} == {"label"}
    assert {stem(word) for word in ("mask", "masks", "masked")} == {"mask"}
    assert {stem(word) for word in ("retry", "retries", "retried")} == {"retr"}
    assert {stem(word) for word in ("verify", "verifies", "verification", "verifier")} <= {"verif", "verifi"}
