"""What of a reply is a command about the context."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context_manager.self_managed import Command, commands_of, without_blocks


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Remove m1, m2,m3", [Command("remove", (1, 2, 3))]),
        ("- keep [m4] [m5]", [Command("keep", (4, 5))]),
        ("compress m4: short: text", [Command("compress", (4,), "short: text")]),
        ("remove m4: no longer needed", [Command("remove", (4,), "no longer needed")]),
        ("compress m1: a; b", [Command("compress", (1,), "a; b")]),
        ("compress m1: a; remove m2", [Command("compress", (1,), "a"), Command("remove", (2,))]),
        ("compress m4:", []),
        ("compress m4 m5: both", []),
        ("remove m1 because it is old", []),
        ("I would remove m4", []),
        ("delete m4", []),
        ("remove m" + "9" * 5_000, []),
    ],
)
def test_a_line_is_a_command_or_nothing(line, expected):
    assert commands_of(f"<context>\n{line}\n</context>") == expected


def test_commands_stand_between_tags_unless_they_were_asked_for():
    assert commands_of("remove m1") == []
    assert commands_of("remove m1", asked=True) == [Command("remove", (1,))]
    assert commands_of("remove m1 <context>keep m2</context>", asked=True) == [Command("keep", (2,))], (
        "tags count where there are some"
    )


PIECES = [*("keep", "remove", "compress", "m1", "[m22]", "<context>", "</context>", "- "), *" m3,:;\nx"]


@pytest.mark.thorough
@settings(max_examples=400, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=30).map("".join), asked=st.booleans())
def test_whatever_was_said_commands_are_whole_and_reading_them_never_fails(text, asked):
    for command in commands_of(text, asked=asked):
        assert command.numbers and (command.verb != "compress" or (len(command.numbers) == 1 and command.text))
        assert "\n" not in command.text
    assert commands_of(without_blocks(text)) == [] or text.count("<context>") > 1, "what is taken out is what counted"
