"""Search in a shop: BM25 over each product's texts (k1 0.9, b 0.4). Ties keep the shop's order.

The published shop uses Lucene with the same numbers, but other stemming and stop words, so rankings differ.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

K1, B = 0.9, 0.4
_WORD = re.compile(r"[a-z0-9]+")


def tokens(text: str) -> list[str]:
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in _WORD.findall(text.lower())]


class Index:
    def __init__(self, texts: Iterable[str]) -> None:
        counts = [Counter(tokens(text)) for text in texts]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / max(1, len(lengths)) or 1.0
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            for word, times in count.items():
                weight = times * (K1 + 1) / (times + K1 * (1 - B + B * length / mean))
                self._postings[word].append((place, weight))
        self._size = len(counts)

    def search(self, query: str, most: int) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(tokens(query)):
            found = self._postings.get(word, ())
            rarity = math.log(1 + (self._size - len(found) + 0.5) / (len(found) + 0.5))
            for place, weight in found:
                scores[place] += rarity * weight
        return sorted(scores, key=lambda place: (-scores[place], place))[:most]
