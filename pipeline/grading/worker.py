"""The worker process of `grader`: reads `[kind, answer, reference]`, a JSON array a line, and replies `true`, `false`, the name of an
error, or that after `BROKEN` where there is no such grader or it cannot be imported.

Started as `python -m pipeline.grading.worker FD LIMIT_S MEMORY_BYTES NICE`; FD is its end of the socket. The only module that
imports math-verify and sympy, which take half a second to load; it replies `ready` once they are loaded. It ignores interrupts, has a
limit on its memory, and is killed by the system itself when a question takes longer than LIMIT_S of computing: neither a
busy machine nor code that never checks for signals changes that. It ends when the other side closes the socket.
"""

import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from pipeline.grading.answers import BROKEN, KINDS
from pipeline.grading.forms import Leaf, same_form
from pipeline.grading.plugins import load_grader
from pipeline.imports import without_collections

PARSED = 256
"""Parsed expressions kept in memory: many answers are compared with the same reference."""
PROBE_DIGITS = 15
"""Digits to which two expressions are evaluated at a point before they are compared symbolically."""
PROBE_TOLERANCE = 1e-6
"""Relative difference of the two values from which on the expressions are different."""


def main() -> None:
    """Entry point of the process: limit its resources, load math-verify and answer questions until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    limit_s, memory, nice = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    os.nice(nice)
    leaf = load_leaf()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what libraries print must not fill a pipe that nobody reads
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(leaf, limit_s, channel.makefile("r", encoding="utf-8"), lambda said: channel.sendall(f"{said}\n".encode()))


def serve(leaf: Leaf, limit_s: float, questions: Iterable[str], say: Callable[[str], Any]) -> None:
    """Answer every one of `questions` through `say`; a question that computes for more than `limit_s` seconds ends the process."""
    say("ready")
    for line in questions:
        kind, answer, reference = json.loads(line)
        try:
            grade = partial(same_form, leaf=leaf) if kind in KINDS else load_grader(kind)
        except Exception as error:  # not installed here, or its import fails
            say(f"{BROKEN}{type(error).__name__}")
            continue
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # the default action of its signal ends the process
        try:
            said = "true" if grade(answer, reference) else "false"
        except Exception as error:  # too deep for the parser, too large for the memory, ...
            said = type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        say(said)


def load_leaf() -> Leaf:
    """math-verify as a `Leaf`. Its own time limits are off: they need signals, which C code does not check."""
    logging.disable(logging.CRITICAL)
    with without_collections():
        from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
        from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

        gc.freeze()

    # It would drop any unit, and a trailing variable that looks like one; `units` has split them off already.
    plain = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False)
    extraction = [LatexExtractionConfig(normalization_config=plain)]

    @lru_cache(PARSED)
    def parsed(text: str) -> Any:
        return [_complex(each) for each in parse(f"${text}$", extraction_config=extraction, parsing_timeout=None)]

    def leaf(answer: str, reference: str) -> bool:
        said, expected = parsed(answer), parsed(reference)
        if said and expected and _far_apart(said[0], expected[0]):
            return False
        return bool(verify(expected, said, allow_set_relation_comp=True, timeout_seconds=None))

    return leaf


def _complex(parsed: Any) -> Any:
    """`parsed` with the imaginary unit in place of `i` where that is its only letter; math-verify takes it for a variable."""
    from sympy import Expr, I  # type: ignore[import-untyped]

    if isinstance(parsed, Expr) and {str(symbol) for symbol in parsed.free_symbols} == {"i"}:
        return parsed.subs(dict.fromkeys(parsed.free_symbols, I))
    return parsed


def _far_apart(a: Any, b: Any) -> bool:
    """Whether two expressions have different values at a point: then no simplification, which takes longest, makes them equal.

    False also where there is doubt: something else than an expression, rounded numbers, no value there.
    """
    from sympy import Expr, Float

    if not (isinstance(a, Expr) and isinstance(b, Expr)) or a.has(Float) or b.has(Float):
        return False
    point = {symbol: 0.7 + 0.3183 * place for place, symbol in enumerate(sorted(a.free_symbols | b.free_symbols, key=str))}
    try:
        values = [complex(each.evalf(PROBE_DIGITS, subs=point)) for each in (a, b)]
        return abs(values[0] - values[1]) > PROBE_TOLERANCE * max(1.0, *map(abs, values))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return False


if __name__ == "__main__":
    main()
