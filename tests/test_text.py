"""Text of others can be read and obeyed by nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pipeline.text import cell, in_markdown, sanitize


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(
            (text, f"'{text}")
            for text in ("=1+1", "+1+1", "-1-1", "- cmd|' /C calc'!A0", "@x", " =1", '"=1"', "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x")
        ),
        ("\t=1", "'\t'=1"),
        ("\n=1", "'\n'=1"),
        ("\r=1", "\\u000d=1"),
        ("a;=1+1;b", "a;'=1+1;b"),
        ("a; =1;@x", "a;' =1;'@x"),
        ('a;"=1"', 'a;\'"=1"'),
        ("a\t\uff1d1\n+cmd|-1-1", "a\t'\uff1d1\n'+cmd|'-1-1"),
        ("\x1b[2J\u202e", "\\u001b[2J\\u202e"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_what_a_spreadsheet_would_compute_or_a_terminal_obey_is_text(text: str, shown: str) -> None:
    assert cell(text) == shown


@pytest.mark.parametrize(
    "text", ["", "1", "a=b", "-7", "+7.5%", "-1,200.50", "1e-5", "a;-1;+2", "x = 1; y = 2", "Steps:\n- one\n- two", "a,=1", "é→日"]
)
def test_other_cells_stay(text: str) -> None:
    assert cell(text) == text


@given(st.text(st.sampled_from("=+-@\uff1d\uff0b;|\t\n\r\x00 '\"1a,")))
def test_no_part_of_a_cell_is_computed_whatever_separates_cells(text: str) -> None:
    for separator in ";|\t\n":
        for part in cell(text).split(separator):
            computed = part.strip(' "').startswith(("=", "@", "\uff1d", "\uff0b"))
            assert not computed


LINKS = [
    "![x](javascript:alert(1))",
    "[x](javascript:alert(1))",
    "\\[x\\](javascript:alert(1))",
    "[x]: javascript:alert(1)",
    "<script>alert(1)</script>",
    "<javascript:alert(1)>",
    "&lt;b&gt; &#106;",
    "a|b\\|c\\\\|d",
    "[0.1, 0.2]",
    "C:\\new \\!",
]


@pytest.mark.parametrize("text", LINKS)
def test_markdown_makes_nothing_of_text(text: str) -> None:
    """By another reader of Markdown: in a line, in an item of a list, and in a cell."""
    shown, parser = in_markdown(text), MarkdownIt("commonmark").enable("table")
    for page in (f"of {shown} [x]", f"- {shown} [x]", f"| [x] |\n|---|\n| {shown} |"):
        lines = [token.children or [] for token in parser.parse(page) if token.type == "inline"]
        assert {piece.type for line in lines for piece in line} <= {"text", "text_special"}
        assert text in {"".join(piece.content for piece in line).removeprefix("of ").removesuffix(" [x]") for line in lines}


def test_emphasis_and_brackets_of_ours_stay_in_markdown() -> None:
    assert in_markdown("**holds** `busy` 0.8 [0.7, 0.9] r1_1.5b") == "**holds** `busy` 0.8 [0.7, 0.9] r1_1.5b"
    assert in_markdown("two\nlines") == "two lines"
