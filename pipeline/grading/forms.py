"""The form of two answers, before any mathematics: both are split into parts in the same way, and `leaf` compares the parts.

math-verify compares bare expressions well, but not several parts in any order, units, dates, words, or a name before an equals sign. These
forms are handled here, by the text; no expression is evaluated.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from math import gcd

from pipeline.grading.answers import is_percentage, same_answer
from pipeline.grading.notation import clean
from pipeline.grading.units import factor, split_unit

Leaf = Callable[[str, str], bool]
"""Whether two expressions without wrapping, the answer and the reference, are mathematically equal."""
MAX_PARTS = 64
"""Tuples, unions and matrices of more parts are not compared part by part."""
DEEPEST = 60
"""Texts with more deeply nested brackets are taken to differ: parsers recurse and would overflow the stack."""
_DEPTH = {"(": 1, "[": 1, "{": 1, r"\{": 1, r"\begin{": 2, r"\end{": 0, ")": -1, "]": -1, "}": -1, r"\}": -1}
"""By how much a mark goes deeper into brackets; the name of an environment has a closing brace that is a mark, too."""

_MATRIX = re.compile(r"^[\[(]?\s*\\begin\{matrix\}(.*)\\end\{matrix\}\s*[\])]?$", re.DOTALL)
_BRACED = re.compile(r"\\?\{\s*\\?\{(?!.*\\[a-zA-Z]).*\}\s*\\?\}$", re.DOTALL)
_OUTSIDE = re.compile(r"^(?:\||\\lvert\s*)([a-zA-Z])(?:\||\s*\\rvert)\s*(>=?|\\geq?\b)\s*([^<>=]+)$")
_TOKEN = re.compile(r"\\begin\{|\\end\{|\\[{}]|\\[a-zA-Z]+|\\.|[(\[{}\])]|[,;:]|(?<![<>!])=|\b(?:and|or)\b", re.DOTALL)
_GROUPED = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)
_BUILDER = re.compile(r"^\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\{?\s*R\s*\}?\s*)?(?:\||:|\\mid|\\vert)(.*)\\\}$", re.DOTALL)
_MEMBER = re.compile(r"^[a-zA-Z]\s*\\in\b\s*")
_NAME = re.compile(r"^(?!\d)(?=.*[A-Za-z])[A-Za-z\\{}_'(), 0-9]+$")
_TEXTS = re.compile(r"(?:\\(?:text\w*|mbox)\s*\{|\")([^{}\"]*)[}\"]")
_MODULO = re.compile(r"\s*\(?\s*\\?[bp]?mod(?![a-z])\s*\{?\s*(\d{1,99})\s*\}?\s*\)?$")
_LETTERS = re.compile(r"[A-Za-z](?:\s*[A-Za-z])+")
_CODE = re.compile(r"[A-Z](?:\s?[A-Z])+|[a-z]*o[a-z]*")
"""Text that is not marked as such: several capitals, and words with an `o`, which is no variable."""
_TO = re.compile(r"(?<=\d)\s+to\s+(?=\d)")
_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = rf"(?P<name>{'|'.join(rf'{month[:3]}(?:{month[3:]}|t)?' for month in _MONTHS)})\.?"
_DAY = r"(?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?"
_DATES = [
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"{_MONTH} {_DAY}(?:,? (?P<y>\d{{4}}))?",
        rf"{_DAY}(?: of)? {_MONTH}(?:,? (?P<y>\d{{4}}))?",
        rf"{_MONTH},? (?P<y>\d{{4}})",
        "(?P<y>[12]\\d{3})(?P<mark>[-/.年])(?P<m>\\d{1,2})(?:(?P=mark)|月)(?P<d>\\d{1,2})日?",
        r"(?P<m>\d{1,2})(?P<mark>[-/.])(?P<d>\d{1,2})(?P=mark)(?P<y>[12]\d{3})",
    )
]
_TIME = re.compile(
    r"(?P<hour>[01]?\d|2[0-3])(?:\s?:\s?(?P<minute>[0-5]\d))?(?:\s?:\s?(?P<second>[0-5]\d))?\s?(?P<half>[ap]\.?\s?m\.?|o'clock)?", re.I
)
Moment = tuple[int | None, ...]
"""Month, day and year of a date; hour, minute, second and half of the day of a time. None: not given."""
_BAR = r"(?:\||\\[lr]?[vV]ert|\\\|)"
_QUANTITY = re.compile(
    r"(?:[A-Za-z]+|\\(?:text|mathrm|operatorname|mathbb|mathbf)\s*\{\s*\w+\s*\})\s*(?:_\{[^{}]*\}|_\w)?\s*(?:\([^()]*\)|\[[^\[\]]*\])"
    rf"|[a-zA-Z](?:\s*:\s*[a-zA-Z])+|[A-Wa-w](?:\s*\+\s*[A-Wa-w])+|\[[A-Z]{{3,}}\]|{_BAR}\s*(?:[a-wz]|[A-Z]{{2,}}|[A-Z]\w*_\S+|\\(?:vec|overline|overrightarrow|mathbf)\s*\{{[^{{}}]*\}}.*)\s*{_BAR}"
)
"""Has a value and is no unknown: a probability, a length, an absolute value, a function at a point."""
_RELATED = re.compile(r"[=<>,;]|\\(?:in|to|mid|neq?|[lg]eq?)(?![a-z])|(?<![\\A-Za-z])[A-Za-z]{4}")
_INVERSE = re.compile(r"\^\s*\{?\s*-1\s*\}?")
_HEAD = re.compile(r"^([A-Za-z])\s*\(\s*[a-z]\s*\)$")
_CALL = re.compile(r"^(?:Matrix|array|np\.array)\((.*)\)$", re.DOTALL)
_BASE = re.compile(r"^(\d[\dA-F]*)_\{?(\d+)\}?$")
_WORDS = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z' -]+", re.ASCII)
_SCIENTIFIC = re.compile(r"(?<![\w.}])(\d+(?:\.\d+)?)[eE](\+?\d+|-\d+)(?![\w.(])", re.ASCII)
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_SAYINGS = {
    "none": "∅", "no solution": "∅", "no solutions": "∅", "no real solution": "∅", "no real solutions": "∅", "empty set": "∅",
    "the empty set": "∅", r"\emptyset": "∅", r"\varnothing": "∅", "all real numbers": "R", "all reals": "R",
    r"\mathbb{r}": "R", r"\mathbb r": "R", r"(-\infty,\infty)": "R", r"(-\infty,+\infty)": "R", "infinity": r"\infty",
    "undefined": "undefined", "does not exist": "undefined", "dne": "undefined",
}  # fmt: skip


def same_form(answer: str, reference: str, leaf: Leaf) -> bool:
    """Whether `answer` equals `reference`, part by part; `leaf` decides about single expressions."""
    left, right = clean(answer), clean(reference)
    if (same := _same_moment(left, right)) is not None:
        return same
    if not left or not right or any(depth > DEEPEST for text in (left, right) for depth, _ in _marks(text)):
        return False  # nothing to compare, or brackets nested too deeply
    leaf = _of_words({each.strip() for text in (answer, reference) for each in _TEXTS.findall(text)}, leaf)
    bare = not left.startswith(r"\{") and not right.startswith(r"\{")
    return any(_same_parts(a, b, leaf, bare) for a, b in dict.fromkeys(product(_readings(left), _readings(right))))


def _same_moment(a: str, b: str) -> bool | None:
    """Whether two texts are the same date or time of day, where each says as much as the other or leaves out the year, or whether it is
    morning; None where neither is a date, and not both are times."""
    mine, theirs = _moment(a), _moment(b)
    if mine is None or theirs is None:
        return False if 3 in (len(mine or ()), len(theirs or ())) else None
    return mine[:-1] == theirs[:-1] and (mine[-1] == theirs[-1] or None in (mine[-1], theirs[-1]))


def _moment(text: str) -> Moment | None:
    """The date or the time of day that a whole text is: `March 5` and `the 5th of March` are one date, `3:30 PM` and `15:30` one time."""
    text = " ".join(re.sub(r"\\unit|[{}]", " ", text).split()).strip(" ,")
    if found := next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None):
        said = found.groupdict()
        month = int(said["m"]) if said.get("m") else 1 + [each[:3] for each in _MONTHS].index(said["name"][:3].casefold())
        day, year = (int(said[part]) if said.get(part) else None for part in ("d", "y"))
        if day is not None and month > 12:
            month, day = day, month
        return month, day, year
    found = _TIME.fullmatch({"noon": "12:00 pm", "midnight": "12:00 am"}.get(text.casefold(), text))
    if found is None or not (found["minute"] or found["half"]):
        return None
    hour, half = int(found["hour"]), (found["half"] or "o")[0].casefold()
    morning = hour < 12 if half == "o" and hour > 12 else None if half == "o" else half == "a"
    return hour % 12, int(found["minute"] or 0), int(found["second"] or 0), morning


def _of_words(texts: Collection[str], leaf: Leaf) -> Leaf:
    """`leaf`, which takes no word for a product of its letters: neither one of the `texts` that are marked as such, nor capitals."""

    def compare(answer: str, reference: str) -> bool:
        sides = answer.strip(), reference.strip()
        if all(map(_LETTERS.fullmatch, sides)) and any(side in texts or _CODE.fullmatch(side) for side in sides):
            said, other = ("".join(side.split()).casefold() for side in sides)
            return said == other
        return leaf(answer, reference)

    return compare


def _readings(text: str) -> list[tuple[str, ...]]:
    """Every way to split `text` into parts: with commas between digits as thousands separators, as it stands, with rows of numbers in
    braces as a matrix, and a union, or `|x| > 3`, as one part or the other."""
    grouped = _GROUPED.sub(lambda found: found[0].replace(",", ""), text) if re.match(r"[^(\[\\]|\\dollar", text) else text
    rows = text.replace("\\", "").replace("{", "[").replace("}", "]") if _BRACED.match(text) else text
    return [tuple(_parts(each)) for each in dict.fromkeys((grouped, text, rows, _OUTSIDE.sub(_outside, text.replace(r"\cup", " or "))))]


def _outside(found: re.Match[str]) -> str:
    name, sign, bound = found.groups()
    return f"{name} {sign} {bound} or {name} {sign.replace('>', '<').replace('g', 'l')} -({bound})"


def _parts(text: str) -> list[str]:
    """The parts of `text` between commas, semicolons, `and` and `or` outside brackets; of a set, its elements."""
    text = text.strip()
    if re.fullmatch(r"\\\{\s*\\\}", text):
        return [r"\emptyset"]
    if text.startswith(r"\{") and _closes_at_end(text) and not _BUILDER.match(text):
        text = text[2:].removesuffix(r"\}")
    pieces = split(text)
    if len(pieces) == 1 and text.startswith("{") and _closes_at_end(text):  # a set whose braces are not escaped
        pieces = split(text[1:-1], (",", ";")) if "," in text else pieces
    return [each for piece in pieces if piece for each in _signs(piece)] or [text]


def _signs(text: str) -> list[str]:
    """The two answers that `a \\pm b` stands for, all upper signs and all lower ones; any other `text` alone."""
    if not re.search(r"\\(?:pm|mp)(?![a-z])", text):
        return [text]
    return [text.replace(r"\pm", sign).replace(r"\mp", other) for sign, other in (("+", "-"), ("-", "+"))]


def _marks(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The brackets and separators of a text, each with the number of brackets that are open behind it."""
    depth = 0
    for mark in _TOKEN.finditer(text):
        depth += _DEPTH.get(mark[0], 0)
        yield depth, mark


def split(text: str, at: Sequence[str] = (",", ";", "and", "or")) -> list[str]:
    """The pieces of `text` between separators that stand outside all brackets."""
    found, start = [], 0
    for depth, mark in _marks(text):
        if depth == 0 and mark[0] in at:
            found.append(text[start : mark.start()].strip())
            start = mark.end()
    return [*found, text[start:].strip()]


def _closes_at_end(text: str) -> bool:
    """True if the bracket that `text` starts with is closed by its last character."""
    return next((mark.end() == len(text) for depth, mark in _marks(text) if depth == 0), False)


def _same_parts(answer: Sequence[str], reference: Sequence[str], leaf: Leaf, bare: bool) -> bool:
    """Whether the parts of both sides are equal one to one: in any order, unless only one side gives names (`x = 1, y = 2`).

    With `bare` (no side is a set) a tuple may be written without its brackets.
    """
    answer, reference = _by_name(_unzipped(answer)), _unzipped(reference)
    if bare and len(answer) != len(reference) and 1 in (len(answer), len(reference)):
        answer, reference = (_items(each[0], "(") if len(each) == 1 else each for each in (answer, reference))
        return _in_order(answer, reference, leaf)
    if len(answer) != len(reference) or len(answer) > MAX_PARTS:
        return False
    if len(answer) == 1:
        return _same_one(answer[0], reference[0], leaf)
    names = [[name for part in parts if (name := _named(_sides(part)))] for parts in (answer, reference)]
    if bool(names[0]) != bool(names[1]) and any(len({re.sub(r"_?\d+$", "", name) for name in own}) > 1 for own in names):
        return _in_order(answer, reference, leaf)
    left = list(reference)
    for part in answer:
        nearest = sorted(left, key=lambda other: not same_answer(part, other))
        partner = next((other for other in nearest if _same_one(part, other, leaf)), None)
        if partner is None:
            return False
        left.remove(partner)
    return True


def _unzipped(parts: Sequence[str]) -> Sequence[str]:
    """The values of a tuple that is the only part, each with its name, where it has names: `(x, y) = (1, 2)`; any other `parts`."""
    names, values = map(_items, _sides(parts[0])) if len(parts) == 1 and len(_sides(parts[0])) == 2 else ([], [])
    return [f"{name}={value}" for name, value in zip(names, values, strict=False)] if len(names) == len(values) > 1 else parts


def _by_name(parts: Sequence[str]) -> Sequence[str]:
    """The parts in the order of their names, where each has another one; any other `parts` as they are."""
    names = {part: name for part in parts if (name := _named(_sides(part)))}
    if len({*names.values()}) < len(parts):
        return parts
    return sorted(parts, key=lambda part: re.sub(r"\d+", lambda digits: digits[0].zfill(9), names[part]))


def _in_order(answer: Sequence[str], reference: Sequence[str], leaf: Leaf) -> bool:
    return len(answer) == len(reference) and all(_same_one(a, b, leaf) for a, b in zip(answer, reference, strict=True))


def _same_one(answer: str, reference: str, leaf: Leaf) -> bool:
    """Whether two single parts are equal: tuples, intervals, matrices, equations, words, or expressions with or without a unit."""
    # The condition of a set builder, or the set behind `x \in`; any other text as it is.
    a, b = (_MEMBER.sub("", _BUILDER.sub(r"\1", text).strip()) for text in (answer, reference))
    if a == b or same_answer(a, b):
        return True
    if (same := _words(a, b)) is not None or (same := _same_moment(a, b)) is not None:
        return same
    for compare in (_matrices, _brackets, _ratios, _equations):
        if (same := compare(a, b, leaf)) is not None:
            return same
    if moduli := {found[1] for text in (a, b) if (found := _MODULO.search(text))}:
        return len(moduli) == 1 and _same_one(_MODULO.sub("", a), _MODULO.sub("", b), leaf)
    (x, unit), (y, other) = split_unit(a), split_unit(b)
    if unit is None and not _has_letters(y):
        x, unit = split_unit(a, symbols=True)
    elif other is None and not _has_letters(x):
        y, other = split_unit(b, symbols=True)
    if (times := factor(unit, other)) is None or (unit and is_percentage(b)) or (other and is_percentage(a)):
        return False
    return _values(x.strip() if times == 1 else rf"({times})\cdot({_expression(x)})", y.strip(), leaf)


def _words(a: str, b: str) -> bool | None:
    """Whether two texts of words are equal, by their text or as well-known phrases (`no solution`); None where neither text is words.

    math-verify would take their letters for variables.
    """
    said, other = (re.sub(r"\s+", " ", text).casefold().replace(", ", ",").strip(". ") for text in (a, b))
    if _SAYINGS.get(said, said) == _SAYINGS.get(other, other):
        return True
    return False if any(map(_is_prose, (a, b))) else None


def _is_prose(text: str) -> bool:
    """True if a text is only letters, of which four are together, or has several such words; `p - q` is an expression."""
    return _WORDS.fullmatch(text) is not None or len(_PROSE.findall(split_unit(text)[0])) > 2


def _brackets(a: str, b: str, leaf: Leaf) -> bool | None:
    """Whether two tuples or intervals have the same brackets around equal elements in order; None where one text is neither."""
    mine, theirs = _items(a), _items(b)
    if not mine or not theirs:
        return None
    return (a[0], a[-1]) == (b[0], b[-1]) and _in_order(mine, theirs, leaf)


def _items(text: str, bracket: str = "([") -> list[str]:
    """The elements of a tuple, an interval or a vector; none where `text` is none of them."""
    if text[:1] not in tuple(bracket) or text[-1:] not in (")", "]") or not _closes_at_end(text):
        return []
    items = split(text[1:-1], (",", ";"))
    return items if 1 < len(items) <= MAX_PARTS else []


def _matrices(a: str, b: str, leaf: Leaf) -> bool | None:
    """Whether two matrices are equal cell by cell, whatever their brackets; None where neither text is a matrix of LaTeX.

    The other one may be written `[[1, 2], [3, 4]]`, and a vector as a tuple.
    """
    if not _MATRIX.match(a) and not _MATRIX.match(b):
        return None
    rows = [_rows(a), _rows(b)]
    if not rows[0] or not rows[1]:
        return None
    vectors = [len(each) == 1 or all(len(row) == 1 for row in each) for each in rows]
    if all(vectors) and any(not _MATRIX.match(text) and text[1:2] not in ("[", "(") for text in (a, b)):
        rows = [[[cell] for row in each for cell in row] for each in rows]  # a tuple is no row and no column
    if [len(row) for row in rows[0]] != [len(row) for row in rows[1]] or sum(map(len, rows[0])) > MAX_PARTS:
        return False
    cells = [[cell.strip() for row in each for cell in row] for each in rows]
    return _in_order(cells[0], cells[1], leaf)


def _rows(text: str) -> list[list[str]]:
    """The cells of a matrix, row by row; of a tuple one row. Empty where `text` is neither."""
    if found := _MATRIX.match(text):
        return [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", found[1].strip().removesuffix("\\\\"))]
    text = _CALL.sub(r"\1", text)
    if text[:1] not in ("(", "[") or not _closes_at_end(text):
        return []
    rows = split(text[1:-1], (";",))
    if len(rows) > 1 and text[0] == "[":
        return [split(row, (",",)) if "," in row else row.split() for row in rows]
    items = split(text[1:-1], (",", ";"))
    return [split(item[1:-1], (",",)) for item in items] if all(item[:1] + item[-1:] in ("[]", "()") for item in items) else [items]


def _ratios(a: str, b: str, leaf: Leaf) -> bool | None:
    """Whether two ratios are proportional; None where neither text is one, and where one of two terms is compared with a fraction."""
    mine, theirs = (split(_TO.sub(":", text) if ":" in a + b else text, (":",)) for text in (a, b))
    terms = (*mine, *theirs)
    if len(terms) == 2 or not all(re.search(r"\d|^\W*[a-zA-Z]\W*$", term) and not _RELATED.search(term) for term in terms):
        return None
    if _moment(b) and not _moment(a) and re.fullmatch(r"[\d\s:]+", b) and gcd(*map(int, theirs)) > 1:
        return False
    if len(mine) == len(theirs):
        pairs = [(rf"({x})\cdot({theirs[0]})", rf"({y})\cdot({mine[0]})") for x, y in zip(mine, theirs, strict=True)]
        return all(leaf(_expression(x), _expression(y)) for x, y in pairs)
    if {len(mine), len(theirs)} == {1, 2}:
        over = [rf"\frac{{{side[0]}}}{{{side[1]}}}" if len(side) == 2 else side[0] for side in (mine, theirs)]
        return _values(over[0], over[1], leaf)
    return False


def _equations(a: str, b: str, leaf: Leaf) -> bool | None:
    """Whether equations are equal: of `name = value` the value counts, of a calculation its last side; None where there are none."""
    mine, theirs = _sides(a), _sides(b)
    if len(mine) == len(theirs) == 1:
        return None
    names = [_named(sides) for sides in (mine, theirs)]
    if len(mine) > 1 and len(theirs) > 1 and (_has_letters(mine[0]) or _has_letters(theirs[0])):
        if None in names:
            return _solved(mine) == _solved(theirs) and leaf(a, b)
        if names[0] != names[1]:
            return False
    elif any(len(sides) > 1 and name is None and _has_letters(sides[0]) for name, sides in zip(names, (mine, theirs), strict=True)):
        return False  # an equation, and no equation
    return _same_one(mine[-1], theirs[-1], leaf)


def _solved(sides: Sequence[str]) -> bool:
    """True if the two sides are a name and a number; any other equation is still to be solved."""
    return len(sides) == 2 and any(_plain_name(x) and not _has_letters(y) for x, y in (sides, sides[::-1]))


def _has_letters(text: str) -> bool:
    return re.search("[a-zA-Z]", re.sub(r"\\[a-zA-Z]+(?:\{matrix\})?", "", text)) is not None


def _sides(text: str) -> list[str]:
    """The sides of an equation, a name first; an equals sign in brackets, as in `\\sum_{k=1}^n`, makes none."""
    sides = split(text, ("=", r"\approx", r"\equiv"))
    turned = len(sides) == 2 and not _has_letters(sides[0]) and _has_letters(sides[1]) and _named(sides[::-1])
    return sides[::-1] if turned else sides


def _named(sides: Sequence[str]) -> str | None:
    """The name of the value in an equation; None where it names none, or is still to be solved."""
    if len(sides) == 1:
        return None
    if _QUANTITY.fullmatch(sides[0]) and not _HEAD.match(sides[0]) and not _has_letters(split_unit(sides[-1])[0]):
        return re.sub(r"[\s{}]", "", sides[0])
    return _plain_name(sides[0])


def _plain_name(text: str) -> str | None:
    """`text`, normalised, if it is only a name, with `f(x)` and `y` as one name; else None."""
    if not _NAME.match(re.sub(r"_\{[^{}]*\}", "_n", _INVERSE.sub("", text, count=1))):
        return None
    name = re.sub(r"[\s{}]", "", text)
    return "y" if _HEAD.match(name) else name.casefold()


def _values(a: str, b: str, leaf: Leaf) -> bool:
    """Whether two expressions are equal. A percentage on one side only counts as its number or a hundredth of it; number bases must
    agree if both are given."""
    percent, expected = is_percentage(a), is_percentage(b)
    a, b = a.rstrip("% "), b.rstrip("% ")
    mine, theirs = _BASE.match(a), _BASE.match(b)
    if mine or theirs:
        (x, base), (y, other) = ((found[1], found[2]) if found else (text, None) for found, text in ((mine, a), (theirs, b)))
        return x == y and (base is None or other is None or base == other)
    x, y = _expression(a), _expression(b)
    if (found := same_answer(a, b) or leaf(x, y)) or percent == expected:
        return found
    return leaf(rf"\frac{{{x}}}{{100}}", y) if percent else leaf(x, rf"\frac{{{y}}}{{100}}")


def _expression(text: str) -> str:
    """`text` for math-verify: without the marks that `clean` put in, with `1 1/2` as a sum and powers of ten as such."""
    text = re.sub(r"\\unit\{([^{}]*)\}", r" \1 ", text).replace(r"\dollar", "").strip()
    text = _SCIENTIFIC.sub(r"\1\\cdot 10^{\2}", text)
    return re.sub(r"^(-?)(\d+) (\d+)/(\d+)$", r"\1(\2+\\frac{\3}{\4})", text)
