"""Formulas become MathML; everything else, money and what no converter knows among it, stays text."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.show.maths import ATTRIBUTES, ELEMENTS, LONGEST, answer, with_maths

HALF = "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>"
HOSTILE = [
    r"$\text{</math><script>window.hit = 1</script><img src=x onerror=y>}$",
    r"$\text{&lt;script&gt;}$",
    r"$\href{javascript:alert(1)}{x}$",
    r"$\style{background:url(//evil.example)}{x}$",
    r"$\class{bar}{\cssId{main}{x}}$",
    "$\\text{a\u202eb\x1b}$",
    '$"><img src=x>$',
]


def test_a_formula_is_mathml_in_its_text() -> None:
    for marked in (r"$\frac{1}{2}$", r"\(\frac{1}{2}\)", r"\[\frac{1}{2}\]", r"$$\frac{1}{2}$$"):
        html = with_maths(f"a < {marked} > b")
        assert html.startswith("a &lt; <math ")
        assert html.endswith("</math> &gt; b")
        assert HALF in html
        assert ('display="block"' in html) == (marked[1] in "[$")
        assert r'title="\frac{1}{2}"' in html
    assert 'notation="box"' in with_maths(r"so \boxed{\frac{1}{2}}")
    assert with_maths(r"\[\begin{aligned} a &= b \\ c &= d \end{aligned}\]").count("<mtr>") == 2
    assert HALF in answer(r"\frac{1}{2}"), "an answer with a command needs no marks"
    assert (answer("27"), answer("<b>"), answer(None)) == ("27", "&lt;b&gt;", "")


def test_what_is_no_formula_stays_as_it_is() -> None:
    deep, long = "${" + "{" * 50 + "}" * 51 + "$", f"${'x' * (LONGEST + 1)}$"
    for text in ("$5 and $6", r"it costs \$5, or \$6$", "$ x $", "$x", r"\(x", r"$\unknown{x}$", "$x$2", "no formula", deep, long):
        assert with_maths(text) == text


@given(st.text(alphabet="$\\()[]{}^_&x1 <", max_size=60))
def test_no_text_breaks_a_page_or_brings_markup_or_characters_that_are_obeyed(text: str) -> None:
    for html in map(with_maths, (*HOSTILE, text)):
        assert html.count("<math") == html.count("</math>")
        assert set(re.findall(r"</?(\w*)", html)) <= ELEMENTS
        for attributes in re.findall(r"</?\w*([^>]*)>", html):
            assert set(re.findall(r'(\S+)="', re.sub(r'"[^"]*"', '"', attributes))) <= ATTRIBUTES | {"title"}
        assert not set("\x1b\u202e") & set(html)


@pytest.mark.parametrize("part", [r"\[", r"\(", "$a ", "$$ a", r"\[ \( "])
def test_marks_that_never_close_cost_linear_time(part: str) -> None:
    began = time.process_time()
    with_maths(part * (40_000 // len(part)))
    assert time.process_time() - began < 1
