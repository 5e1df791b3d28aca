"""What is counted of a file depends on its code and not on how wide it is set."""

from benchmarks.size import measured

NARROW = '"""A file."""\n\n# A comment.\nvalue = max(\n    1,\n    2\n)\n'
WIDE = '"""A file."""\nvalue = max(1, 2)\n'


def test_tokens_and_statements_do_not_depend_on_the_lines():
    narrow, wide = measured(NARROW), measured(WIDE)
    assert narrow["lines"] == 7 and wide["lines"] == 2
    assert narrow["statements"] == wide["statements"] == 2
    assert narrow["tokens"] == wide["tokens"] == 9
