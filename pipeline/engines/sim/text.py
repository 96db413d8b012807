"""The text of a simulated model: seeded steps that state their number and quality, verdicts on them, and a boxed answer.

A prompt enters, and what the model would write leaves; nothing here knows of time. Like a language model it keeps no state: every step ends
in a marker such as ` aacaam ok`, and the next step reads it at the prompt's tail. Three letters are the step's number in base 26, three
that of all steps, and the word says whether the step is right (`ok`), wrong (`no`), or right after an earlier wrong one (`eh`); the boxed
answer is right if the last step says `ok`. A step of which the prompt holds the beginning is written on, where it would be this model's.
After a step that covers no ground (`verbosity`) the thought is to have one step more. The last step says the answer, if that fits into it.

The draws depend on the model's name, the seed, the candidate's number, the problem and the step alone; at temperature 0 on neither seed nor
number. What candidates of a step have in common depends on the problem and the step alone (`SimTextSpec.step_correlation`).
"""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from random import Random

from msgspec import Struct, structs

from pipeline.engine import Candidate, Content, Fact, Request, Tokenizer, packed
from pipeline.engines.sim.output import GATE_AUC, TRIAL_AUC, TRIAL_DOUBT, Output, normal_of, simulated_confidence, written
from pipeline.engines.sim.spec import SimTextSpec
from pipeline.engines.sim.tokenizer import ASSISTANT, END, USER, VOCAB_SIZE, SimTokenizer
from pipeline.graph.prompts import DEFAULT_PROMPTS, DELIMITER, THINK_CLOSE, THINK_OPEN

KEPT = 8192
"""Problems, and parts of texts, that are kept: live chains ask for the same ones again."""
_TOKENIZER = SimTokenizer()
_SPECIAL = _TOKENIZER.special_ids
_OPEN, _CLOSE, _USER, _ASSISTANT, _END = (_SPECIAL[text] for text in (THINK_OPEN, THINK_CLOSE, USER, ASSISTANT, END))
_encode = _TOKENIZER.encode
(_BLANK_LINE,) = _encode(DELIMITER)
(_LINE,) = _encode("\n")
_OK, _NO, _EH = (_encode(f" {word}")[0] for word in ("ok", "no", "eh"))
_VERDICTS = frozenset((_OK, _NO, _EH))
_STARTS = frozenset((_OPEN, _ASSISTANT, _USER))
_LAST_STOP_IDS = frozenset((_CLOSE, _END))
_BOX = tuple(_encode(DEFAULT_PROMPTS.trial))
_SAID = "so the sum and this gives that we get two terms if each value is set by half then all parts add up as they must".split()
_MOST = 26**3 - 1
"""The greatest number in three letters."""

Piece = tuple[tuple[int, ...], str]
"""Token ids and their text; joining texts is cheaper than decoding the joined ids."""


_draw = Random(0)
_WORDS = [f" {_draw.choice(_SAID)}" for _ in range(4096)]
_FILLER_TEXT = "".join(_WORDS)
_FILLER, _PLACES = tuple(_encode(_FILLER_TEXT)), tuple(accumulate(map(len, _WORDS), initial=0))
"""The words, each a token, and where each of them begins in their text."""


class SimProblem(Struct, frozen=True):
    """A problem, as a simulated model knows it."""

    key: str
    """A hash of the problem's text."""
    answer: str
    """The right answer."""
    normal: float
    """Standard normal draw that decides the number of steps."""


class ThoughtState(Struct, frozen=True):
    """The state of a chain of thought at the end of a prompt."""

    problem: SimProblem | None
    """None: nobody said what the prompt is about; the model writes steps without an end."""
    done: int
    """Steps that are written."""
    total: int
    """Steps that the whole thought will have, if all that are left cover ground."""
    all_right: bool
    """True if no step so far was wrong."""
    closed: bool
    """True if the thought has ended with `</think>`."""
    has_blank_line: bool
    """True if the blank line that follows `</think>` is already there."""
    begun: tuple[int, ...] = ()
    """The part of the next step, or of the answer, that is written."""
    lacks_delimiter: bool = False
    """True if the last step is written but for the blank line that ends it."""

    @property
    def asked_early(self) -> bool:
        """True if its answer is asked for, and begun, before all steps are written."""
        return self.closed and self.done < self.total and self.begun == _BOX


@lru_cache(maxsize=KEPT)
def _problem(text: str) -> SimProblem:
    """The problem that the first line of `text` names."""
    digest = blake2b(text.partition("\n")[0].strip().encode("utf-8", "replace"), digest_size=16).digest()
    answer, steps = struct.unpack("<QQ", digest)
    return SimProblem(digest.hex(), str(1 + answer % 999), normal_of((steps >> 11) * 2.0**-53))


def sim_answer(problem: str) -> str:
    """The right answer of a problem, as simulated models see it: a number 1 to 999, drawn from its first line."""
    return _problem(problem).answer


def _piece(text: str) -> Piece:
    return tuple(_encode(text)), text


@lru_cache(maxsize=KEPT)
def _marker(step: int, total: int, word: str) -> Piece:
    """The marker that ends a step, with `</think>` after the last step and a blank line after any other: three tokens."""
    letters = (chr(ord("a") + number // power % 26) for number in (step, total) for power in (676, 26, 1))
    return _piece(f" {''.join(letters)} {word}{THINK_CLOSE if step == total else DELIMITER}")


@lru_cache(maxsize=KEPT)
def _numbers(marker: int) -> tuple[int, int] | None:
    """The step's number and that of all steps in the first token of a marker; None for any other token."""
    letters = _TOKENIZER.decode((marker,))
    if len(letters) != 7 or not letters[1:].islower():
        return None
    places = [ord(letter) - ord("a") for letter in letters[1:]]
    return places[0] * 676 + places[1] * 26 + places[2], places[3] * 676 + places[4] * 26 + places[5]


def _draws(key: str) -> tuple[float, float, float, float]:
    """Four uniform numbers in [0, 1), the same for the same key."""
    first, second, third, fourth = struct.unpack("<4Q", blake2b(key.encode(), digest_size=32).digest())
    return (first >> 11) * 2.0**-53, (second >> 11) * 2.0**-53, (third >> 11) * 2.0**-53, (fourth >> 11) * 2.0**-53


@lru_cache(maxsize=KEPT)
def _in_common(problem: str, step: int) -> tuple[float, float, float]:
    """What the candidates of a step have in common: a uniform number that decides whether they share whether they are right, a second one
    that then decides it, and the standard normal part of their lengths."""
    share, right, length, _ = _draws(f"{problem}/{step}")
    return share, right, normal_of(length)


def _padded(end: Piece, tokens: int, uniform: float) -> Piece:
    """`end` with filler words before it, so that both together have `tokens` tokens; no filler where `end` alone has more. `uniform`
    decides which words."""
    ids, text = end
    count = len(_FILLER)
    start = int(uniform * count)
    stop = start + max(tokens - len(ids), 0)
    rounds, rest = divmod(stop, count)
    words = (_FILLER_TEXT * (rounds + 1))[_PLACES[start] : rounds * len(_FILLER_TEXT) + _PLACES[rest]]
    return (_FILLER * (rounds + 1))[start:stop] + ids, words + text


@lru_cache(maxsize=4096)
def _option_logprobs(options: int, chosen: int) -> tuple[float, ...]:
    """Log probabilities of the options: 0.85 on the chosen one, 0.14 spread over the others, less the farther they are from it."""
    weights = [0.5 ** abs(option - chosen) if option != chosen else 0.0 for option in range(options)]
    spread = sum(weights) or 1.0
    return tuple(math.log(0.85 if option == chosen else 0.14 * weight / spread) for option, weight in enumerate(weights))


def _last_marker(ids: tuple[int, ...]) -> tuple[int, int] | None:
    """The numbers in the last marker in `ids`."""
    place = next((place for place in range(len(ids) - 1, 0, -1) if ids[place] in _VERDICTS), 0)
    return _numbers(ids[place - 1]) if place else None


def _cover_ground(shown: Sequence[tuple[int, ...]]) -> list[bool]:
    """Whether each candidate covers ground, which is known of single next steps; all are equal where nobody is verbose."""
    marks = [_last_marker(ids) for ids in shown]
    totals = {mark[1] for mark in marks if mark}
    if len(totals) < 2 or len({mark[0] for mark in marks if mark}) > 1:
        return [True] * len(shown)
    return [mark is None or mark[1] == min(totals) for mark in marks]


def _ending(tail: tuple[int, ...]) -> tuple[bool, bool, tuple[int, ...]]:
    """Of what stands after the last step, or after the beginning of the thought: whether the thought is closed, whether the blank line
    after that is there, and what is written of the next step or of the answer."""
    closed = _CLOSE in tail
    after = tail[tail.index(_CLOSE) + 1 :] if closed else tail
    begins_line = after[:1] in ((_BLANK_LINE,), (_LINE,))
    return closed, closed and after[:1] == (_BLANK_LINE,), after[1:] if begins_line else after


class TextModel:
    """The `TextSource` that writes and judges as the simulated model called `name` does, by its `spec`."""

    tokenizer: Tokenizer = _TOKENIZER
    vocab_size = VOCAB_SIZE

    def __init__(self, name: str, spec: SimTextSpec) -> None:
        self.name, self.spec = name, spec
        self.facts: dict[str, Fact] = {"answers": "simulated"}
        self._thought, self._step = spec.distribution("steps"), spec.distribution("step_tokens")

    def output(self, request: Request, max_model_len: int) -> Output:
        """See `TextSource`."""
        prompt = packed(request.prompt_ids)
        if request.option_ids:
            chosen, logprobs = self.choose(request, prompt)
            ids = (request.option_ids[chosen],)
            option = Candidate(ids=ids, text=_TOKENIZER.decode(ids), cumulative_logprob=logprobs[chosen], finish_reason="length")
            return Output((option,), option_logprobs=logprobs)
        return Output(tuple(self.write(request, prompt, min(request.max_tokens, max_model_len - len(prompt)))))

    def read(self, prompt: Sequence[int], content: Content | None) -> ThoughtState:
        """How far the thought in `prompt` has come, read from the marker at its end; `content` has the problem."""
        prompt, problem = packed(prompt), None if content is None else _problem(content.problem)
        begins = 0
        for place in range(len(prompt) - 1, -1, -1):
            token = prompt[place]
            if token in _VERDICTS and place and (found := _numbers(prompt[place - 1])):
                step, total = found
                lacks_delimiter = place == len(prompt) - 1 and step != total
                return ThoughtState(problem, step, total, token == _OK, *_ending(tuple(prompt[place + 1 :])), lacks_delimiter)
            if token in _STARTS:
                begins = place + 1
                break
        return ThoughtState(problem, 0, self._steps(problem) if problem else 0, True, *_ending(tuple(prompt[begins:])))

    def write(self, request: Request, prompt: Sequence[int], limit: int) -> list[Candidate]:
        """All candidates of `request`, each of at most `limit` tokens."""
        state = self.read(prompt, request.content)
        greedy = request.temperature == 0
        # Where all stops end a piece, nothing is written behind the first.
        last = _LAST_STOP_IDS.issuperset(request.stop_ids) and all(stop == DELIMITER for stop in request.stop)
        ends = {*request.stop_ids, *([_BLANK_LINE] if request.stop else [])} if last else set()
        keys = [f"{self.name}/{0 if greedy else request.seed}/{0 if greedy else j}" for j in range(request.n)]
        candidates = [written(*self._text(state, key, limit, ends), limit, request) for key in keys]
        if not request.logprobs:
            return candidates
        return [self._sure(each, state, key, ends) for each, key in zip(candidates, keys, strict=True)]

    def _sure(self, candidate: Candidate, state: ThoughtState, key: str, ends: set[int]) -> Candidate:
        """`candidate` with its confidence, which depends on its step as a whole, however early it is cut: a step can be known by its first
        token."""
        if not candidate.ids:
            return candidate
        whole, text = self._text(state, key, 1, ends)
        problem = state.problem.key if state.problem else ""
        if state.problem and state.asked_early:
            right, sure = text.startswith(f"{state.problem.answer}}}"), _draws(f"{self.name}/{problem}/trial")[0]
            found = simulated_confidence(TRIAL_AUC, right, sure, TRIAL_DOUBT)
        else:
            found = simulated_confidence(GATE_AUC, _NO not in whole, _draws(f"{key}/{problem}/{state.done + 1}/sure")[0])
        return structs.replace(candidate, cumulative_logprob=found.mean * (len(candidate.ids) + candidate.ended), confidence=found)

    def choose(self, request: Request, prompt: Sequence[int]) -> tuple[int, tuple[float, ...]]:
        """The index of the chosen option, and the log probabilities of all; the temperature makes no difference."""
        prompt, options = packed(prompt), len(request.option_ids)
        judged = request.content.judged if request.content else ()
        if len(judged) == options:
            best = self._best([tuple(prompt[start:end]) for start, end in judged])
            chosen = best if best is not None else judged.index((0, 0)) if (0, 0) in judged else 0
        elif judged:
            [(start, end)] = judged
            step = tuple(prompt[max(start, end - 32) : end])
            spread = int(_draws(f"{self.name}/score/{hash(step)}")[0] * 1000)
            chosen = 7 + spread % 3 if self._accepts(_NO not in step[-4:], step) else spread % 7
        else:
            chosen = int(_draws(f"{self.name}/option/{hash(tuple(prompt[-64:]))}")[0] * options)
        chosen = min(chosen, options - 1)
        return chosen, _option_logprobs(options, chosen)

    def _steps(self, problem: SimProblem) -> int:
        return min(max(1, round(self._thought(problem.normal))), _MOST)

    def _best(self, shown: Sequence[tuple[int, ...]]) -> int | None:
        """The place of the best of the candidates `shown`, of which the empty ones are none; None where none is judged right."""
        covers = _cover_ground(shown)
        places = sorted((place for place, ids in enumerate(shown) if ids), key=covers.__getitem__, reverse=True)
        return next((place for place in places if self._accepts(_NO not in shown[place], shown[place])), None)

    def _accepts(self, right: bool, ids: tuple[int, ...]) -> bool:
        """Whether the verifier takes a candidate, which is `right` or not, for right."""
        return right == (_draws(f"{self.name}/judge/{hash(ids)}")[0] < self.spec.verifier_accuracy)

    def _text(self, state: ThoughtState, key: str, limit: int, ends: set[int]) -> Piece:
        """What the model writes: at least `limit` tokens, or less where a piece ends in one of `ends` or the response is over."""
        ids: list[int] = []
        texts = []
        for piece, text in self._rest(state, key):
            ids += piece
            texts.append(text)
            if len(ids) >= limit or piece[-1] in ends:
                break
        return tuple(ids), "".join(texts)

    def _rest(self, state: ThoughtState, key: str) -> Iterator[Piece]:
        """The pieces of `_pieces` without what is written of them already; all of them where that was written in other words."""
        if state.problem and state.asked_early:
            trial = f"{key}/{state.problem.key}/trial/{state.done}"
            number = self._number_said(state.problem, trial, state.all_right, state.done, state.total)
            yield from (_piece(f"{number}}}."), _piece(END))
            return
        begun, pieces = state.begun, self._pieces(state, key)
        while begun:
            ids, _ = next(pieces, ((), ""))
            if not ids or ids[: len(begun)] != begun[: len(ids)]:
                yield from self._pieces(state, key)
                return
            if left := ids[len(begun) :]:
                yield left, _TOKENIZER.decode(left)
            begun = begun[len(ids) :]
        yield from pieces

    def _pieces(self, state: ThoughtState, key: str) -> Iterator[Piece]:
        """The rest of the response in pieces; a blank line, `</think>` and the end of sequence occur only at the end of a piece."""
        problem, step, all_right = state.problem, state.done, state.all_right
        if problem is None:
            while True:
                step += 1
                length, place, _, _ = _draws(f"{key}//{step}")
                yield _padded(_piece(DELIMITER), round(self._step(normal_of(length))), place)
        if state.lacks_delimiter:
            yield _piece(DELIMITER)
        answer, total, correlation = f"{key}/{problem.key}/answer", state.total, self.spec.step_correlation
        while step < total and not state.closed:
            step += 1
            length, place, own, ground = _draws(f"{key}/{problem.key}/{step}")
            share, common, common_normal = _in_common(problem.key, step)
            right = (common if share < correlation else own) < self.spec.step_accuracy
            normal = math.sqrt(1 - correlation) * normal_of(length) + math.sqrt(correlation) * common_normal
            all_right = right and all_right
            total = min(total + (ground * self.spec.verbosity >= 1), _MOST)
            word = "ok" if all_right else "eh" if right else "no"
            end, tokens = _marker(step, total, word), round(self._step(normal))
            if step == total:
                stated = _piece(f" {self._number_said(problem, answer, all_right, step, total)}{end[1]}")
                end = stated if len(stated[0]) <= tokens else end
            yield _padded(end, tokens, place)
        if not (state.closed or state.done < state.total):
            yield _piece(THINK_CLOSE)
        if not state.has_blank_line:
            yield _piece(DELIMITER)
        number, tokens = self._number_said(problem, answer, all_right, step, total), self.spec.answer_tokens
        boxed = _piece(f" \\boxed{{{number}}}.")
        yield _padded(boxed if len(boxed[0]) <= tokens else _piece(number), tokens, _draws(answer)[1])
        yield _piece(END)

    def _number_said(self, problem: SimProblem, key: str, all_right: bool, done: int, total: int) -> str:
        """The answer: right if no error stands and, for a thought cut off, if the answer stands after the share of its ground that is
        covered: after which one it does is uniform over the problems."""
        ground = self._steps(problem)
        share = done / total if total <= ground else 1 - (total - done) / ground
        if all_right and _draws(f"{self.name}/{problem.key}/stands")[0] < share:
            return problem.answer
        return str(1 + (int(problem.answer) + int(_draws(key)[2] * 997)) % 999)
