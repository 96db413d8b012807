"""Text of others can be read and obeyed by nothing."""

import json

import pytest
from markdown_it import MarkdownIt

from pipeline.text import cell, in_markdown, one_line, sanitize, storable


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


def test_json_stays_the_same_json() -> None:
    value = {"id\x1b": "\x9b31m \u202e \x7f \n"}
    shown = sanitize(json.dumps(value, ensure_ascii=False))
    assert json.loads(shown) == value
    assert "\x9b" not in shown


def test_one_line_stays_one() -> None:
    assert one_line("a\nerror: forged\u2028b") == "a\\nerror: forged\\u2028b"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_a_formula_is_text(text: str) -> None:
    assert cell(text) == f"'{text}"


def test_other_cells_stay() -> None:
    assert [cell(text) for text in ("", "1", "a=b", " =")] == ["", "1", "a=b", " ="]


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


def test_a_name_of_odd_bytes_can_be_stored() -> None:
    assert storable(b"p\xff.csv".decode(errors="surrogateescape")).encode() == b"p\\udcff.csv"
