"""Topics for seeds of the world python: a topic, a skill, a level and a setting.

A question is about a topic if one of its words begins with one of the topic's word stems.
"""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """A field of problems: its name in the prompt, and its word stems."""

    about: str
    words: tuple[str, ...]


TOPICS: dict[str, Topic] = {
    "divisors": Topic("divisors and multiples of whole numbers", ("divi", "multiple", "factor", "gcd", "lcm")),
    "primes": Topic("prime numbers", ("prime",)),
    "remainders": Topic("remainders and congruences", ("remainder", "modul", "mod ", "congru", "divided", "left over")),
    "digits": Topic("the digits of numbers", ("digit", "palindrom", "decimal", "binary", "base ")),
    "sequences": Topic("sequences and recurrences", ("sequence", "term", "recur", "series", "progression")),
    "counting": Topic("counting arrangements and selections", ("how many", "number of", "ways", "arrang", "choos",
                                                               "select", "count", "distinct")),
    "paths": Topic("paths on grids and in graphs", ("path", "grid", "route", "graph", "move", "walk", "lattice")),
    "probability": Topic("exact probabilities", ("probab", "chance", "random", "dice", "die ", "coin", "urn", "draw",
                                                 "likely", "expect")),
    "geometry": Topic("points, lengths and areas in the plane", ("triang", "circ", "area", "point", "angle", "square",
                                                                 "rectang", "polygon", "length", "distance", "perimet",
                                                                 "radius", "coordinate")),
    "equations": Topic("equations in whole numbers", ("equation", "solution", "integer", "solve", "satisf", "pair",
                                                      "triple", "=")),
    "sets": Topic("sets and subsets with a condition", ("set", "subset", "element", "union", "intersect")),
    "games": Topic("games of two players with a winning strategy", ("game", "player", "win", "turn", "move", "strateg",
                                                                    "pile")),
}  # fmt: skip

SKILLS: dict[str, str] = {
    "search": "a search through many cases",
    "simulate": "carrying a process out step by step",
    "recurrence": "a recurrence or a table of partial results",
    "exact": "exact arithmetic with large numbers or fractions",
    "cases": "telling several cases apart",
    "optimise": "finding the largest or smallest value under conditions",
}

LEVELS: dict[int, str] = {
    1: "easy: most students of a last year at school solve it",
    2: "moderate: half of them solve it",
    3: "hard: fewer than a third of them solve it",
    4: "very hard: one in twenty of them solves it",
}

SETTINGS = (
    "nothing but numbers", "a bakery", "a railway timetable", "a chess club", "a library", "an orchard", "a lighthouse",
    "a tournament", "a clock tower", "a beehive", "a ferry", "a theatre", "a market stall", "a warehouse", "a choir",
    "a mountain hut", "a printing shop", "a mosaic", "a lottery", "a school trip", "a weaver's loom", "a computer game",
    "a letter puzzle", "a space station",
)  # fmt: skip
