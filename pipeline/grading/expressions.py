"""Whether two mathematical expressions are equal: two texts without wrapping enter, a truth leaves.

math-verify reads them. Values are compared here, because its own comparison has an absolute tolerance: `10^{-20}` is `5\\cdot 10^{-20}`
to it. Rational numbers are compared exactly, all others to `DIGITS` significant digits, and expressions with variables at `POINTS`;
what has no value there, such as most sets, is left to math-verify. Importing this module loads sympy, which takes half a second.
"""

import gc
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from typing import Any

from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]
from sympy import Add, And, Expr, Float, I, Integer, Interval, Mul, Pow, Rational, Symbol, Union, binomial, factorial  # type: ignore[import-untyped]
from sympy.core.relational import Equality, LessThan, Relational, StrictLessThan, Unequality  # type: ignore[import-untyped]

from pipeline.grading.answers import precision

gc.freeze()

PARSED = 256
"""Parsed expressions kept in memory: many answers are compared with the same reference."""
DIGITS = 100
"""Significant digits to which values are compared that are not rational."""
GUARD = 20
"""Digits that are computed beyond those."""
LEAST_FIGURES = 6
"""Significant figures from which on a decimal stands for the irrational number that it rounds."""
POINTS = tuple(
    tuple(Rational((13 + 29 * place * stride) % 47 + 3, 17) * (-1) ** (place * turn + turn) for place in range(12))
    for stride, turn in ((1, 0), (2, 0), (3, 0), (5, 1), (7, 2), (11, 3))
)
"""Values of the variables in the order of their names, at each point where expressions are compared."""
NATURAL = tuple(tuple(Integer(3 + (7 * place + 5 * stride) % 11) for place in range(12)) for stride in range(6))
"""The same for expressions that have values at natural numbers only, or are meant for these."""
_COUNTERS = frozenset("n k m N K M".split())
_DECIMAL = re.compile(r"[+-]?\d*\.(\d+)", re.ASCII)

logging.disable(logging.CRITICAL)
# It would drop any unit, and a trailing variable that looks like one; `units` has split them off already.
_PLAIN = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False)
_EXTRACTION = [LatexExtractionConfig(normalization_config=_PLAIN)]


def equal(answer: str, reference: str) -> bool:
    """Whether two expressions, the answer and the reference, are mathematically equal."""
    said, expected = parsed(answer), parsed(reference)
    if said and expected:
        a, b = said[0], expected[0]
        with suppress(TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):  # sympy's, where it cannot tell
            if (found := _decimals(answer, reference, a, b)) is not None or (found := _same(a, b)) is not None:
                return found
    return bool(verify(expected, said, allow_set_relation_comp=True, timeout_seconds=None))


@lru_cache(PARSED)
def parsed(text: str) -> Any:
    """`text` as math-verify parses it, without its time limits: they need signals, which C code does not check."""
    return [_exact(each) for each in parse(f"${text}$", extraction_config=_EXTRACTION, parsing_timeout=None)]


def _exact(read: Any) -> Any:
    """`read` with decimals as rational numbers, and `i` as the imaginary unit if it is the only letter."""
    if isinstance(read, Expr):
        read = read.xreplace({each: Rational(str(each)) for each in read.atoms(Float)})
        if {str(symbol) for symbol in read.free_symbols} == {"i"}:
            read = read.subs(dict.fromkeys(read.free_symbols, I))
    return read


def _decimals(answer: str, reference: str, a: Any, b: Any) -> bool | None:
    """Whether a decimal is the rounded value of the other side's number, where that is irrational and the decimal has `LEAST_FIGURES`;
    a reference in double precision may round any number, but only True is sure of it. None where nothing is sure."""
    for text, decimal, other, least in ((answer, a, b, Fraction(0)), (reference, b, a, precision(reference))):
        long = (found := _DECIMAL.fullmatch(text)) and len(text.strip("+-0.").replace(".", "")) >= LEAST_FIGURES
        if not (least or long) or not isinstance(other, Expr) or other.free_symbols or (value := _number(other, {})) is None:
            continue
        if least and abs(value - decimal) < Rational(least):
            return True
        if found and long and not value.is_rational:
            return bool(abs(value - decimal) <= Rational(1, 2 * 10 ** len(found[1])))
    return None


def _same(a: Any, b: Any) -> bool | None:
    """Whether two parsed things are equal; None where values cannot decide."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        if any(isinstance(each, Symbol) and len(each.name) > 1 for each in (a, b)):
            return None  # a word, which math-verify compares with a product of its letters
        return _same_values(a, b)
    if isinstance(a, Relational) and isinstance(b, Relational):
        return _same_relations(a, b)
    return _same_sets(a, b)


def _same_values(a: Any, b: Any) -> bool | None:
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    if not names and None not in (exact := [_rational(each) for each in (a, b)]):
        return bool(exact[0] == exact[1])
    real, other = 0, list[bool]()
    for point in _points(names):
        left, right = _number(a, point), _number(b, point)
        if left is None or right is None:
            continue
        close, is_real = _close(left, right), not names or bool(left.is_real and right.is_real)
        if is_real and not close:
            return False
        real += is_real
        other += [] if is_real else [close]
    if not real and not all(other):
        return False  # \ln x^2 and 2 \ln x differ where they are not real, which counts only if they never are
    return True if (real or len(other)) >= (3 if names else 1) else None


def _points(names: Sequence[Any]) -> Sequence[Mapping[Any, Any]]:
    """The points at which two expressions are compared: natural numbers where all variables are named like counters."""
    natural = bool(names) and {str(name) for name in names} <= _COUNTERS
    points = NATURAL if natural else POINTS if names else ((),)
    return [dict(zip(names, values, strict=False)) for values in points if len(names) <= len(values)]


def _rational(value: Any) -> Any:
    """The exact value of sums, products and integer powers of rational numbers; None for anything else."""
    if isinstance(value, Rational):
        return value
    if isinstance(value, factorial | binomial) and all(isinstance(each, Integer) and abs(each) < 5000 for each in value.args):
        return value.doit()
    if not isinstance(value, Add | Mul | Pow):
        return None
    parts = [_rational(each) for each in value.args]
    if None in parts:
        return None
    if isinstance(value, Pow):
        base, exponent = parts
        small = exponent.is_integer and abs(exponent) * max(1, base.p.bit_length() + base.q.bit_length()) < 100_000
        return base**exponent if small and (base or exponent > 0) else None
    return value.func(*parts)


def _number(value: Any, point: Mapping[Any, Any]) -> Any:
    """The value of an expression at a point as a number, exactly 0 where it cannot be told from that; None where it has none."""
    try:
        found = value.evalf(DIGITS + GUARD, subs=point, maxn=1000)
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    real, imaginary = found.as_real_imag() if isinstance(found, Expr) and not found.free_symbols else (None, None)
    if not all(isinstance(part, Float | Rational) for part in (real, imaginary)) or not (found.is_finite or found == 0):
        return None
    parts = [Integer(0) if getattr(part, "_prec", 99) == 1 else part for part in (real, imaginary)]
    return parts[0] + parts[1] * I


def _close(a: Any, b: Any) -> bool:
    """True if two numbers agree to `DIGITS` significant digits."""
    return bool(abs(a - b) <= Rational(1, 10**DIGITS) * max(abs(a), abs(b)))


def _same_sets(a: Any, b: Any) -> bool | None:
    """Whether two intervals, unions of intervals, or inequalities in one variable have equal ends; None for other sets."""
    a, b = (each.as_set() if isinstance(each, Relational | And) and len(each.free_symbols) == 1 else each for each in (a, b))
    mine, theirs = (each.args if isinstance(each, Union) else (each,) for each in (a, b))
    if not all(isinstance(each, Interval) for each in (*mine, *theirs)) or len(mine) > 4:
        return None
    return len(mine) == len(theirs) and any(all(map(_same_interval, mine, order)) for order in permutations(theirs))


def _same_interval(a: Any, b: Any) -> bool:
    ends = ((a.start, b.start), (a.end, b.end))
    return (a.left_open, a.right_open) == (b.left_open, b.right_open) and all(x == y or _same_end(x, y) for x, y in ends)


def _same_end(a: Any, b: Any) -> bool:
    return not (a.is_infinite or b.is_infinite) and bool(_same_values(a, b))


def _same_relations(a: Any, b: Any) -> bool | None:
    """Whether one equation or inequality is a multiple of the other; None where it is not, and they may have the same solutions."""
    mine, theirs = (each.reversed if isinstance(each, LessThan | StrictLessThan) else each for each in (a, b))
    if type(mine) is not type(theirs):
        return False
    left, right = mine.lhs - mine.rhs, theirs.lhs - theirs.rhs
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    values = [(_number(left, point), _number(right, point)) for point in _points(names)]
    ratios = [x / y for x, y in values if x and y]
    if len(ratios) >= 3 and all(_close(ratio, ratios[0]) for ratio in ratios):
        return isinstance(mine, Equality | Unequality) or bool(ratios[0] > 0)
    return _same_sets(a, b) if len(names) == 1 and not isinstance(mine, Equality) else None
