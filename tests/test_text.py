"""Text of others can be read, and is obeyed by no terminal."""

import pytest

from pipeline.text import one_line, sanitize


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, café, 日本, 👍\tand\nlines", "plain, café, 日本, 👍\tand\nlines"),
        ("\x1b[2J\x1b]0;title\x07", "\\u001b[2J\\u001b]0;title\\u0007"),
        ("a\rb\x00\x7f", "a\\u000db\\u0000\\u007f"),
        ("\x9b31m", "\\u009b31m"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_what_a_terminal_obeys_is_shown(text: str, shown: str) -> None:
    assert sanitize(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n")
