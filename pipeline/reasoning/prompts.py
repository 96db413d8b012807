"""What each kind of stage asks, as token ids: chat template, thought so far, question.

A prompt only ever grows at its end. The generation context is the template over the problem plus the committed
thought; a verification appends a turn to exactly these ids, so that the engine's prefix cache holds all but the new
turn, or is a chat of its own. Turns are cut once from the template around placeholders; an earlier turn is never rendered again
(templates such as R1's drop the thought before `</think>` when they render it).

What users, graphs, data and models wrote is text in every prompt: only the template's parts, and the reasoning tags written here, become
control tokens (`Tokenizer.encode_parts`).
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple, TypeAlias

from msgspec import structs

from pipeline.engine import Tokenizer
from pipeline.errors import GraphError, RequestRefused
from pipeline.grading.stated import CLOSE, OPEN
from pipeline.graph.prompts import DEFAULT_PROMPTS, DELIMITER, ChoosePrompt, Marks, Message, Options, Prompts, Question, filled, pieces

MOST_KNOWN = 4096
"""The number of texts of each kind that are kept with their ids."""
WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""All that `str.strip`, which templates use, takes for white space."""

Array: TypeAlias = "array[int]"
Places: TypeAlias = Sequence[tuple[int, int]]
"""Start and end of each candidate; (0, 0) for an option that names none."""


class Margins(NamedTuple):
    """The white space that a template strips from a text, as the characters that `str.lstrip` and `str.rstrip` take."""

    left: str
    right: str


class Opening(NamedTuple):
    """How a chat begins up to a problem."""

    before: list[str]
    """The template's parts before it, between which texts of the graph stand."""
    margins: Margins
    """What the template strips from it."""
    after: str
    """From its end to where the thought begins."""


class OptionPrompt(NamedTuple):
    """A prompt whose next token is one of `option_ids`."""

    ids: Sequence[int]
    option_ids: tuple[int, ...]
    judged: Places = ()
    """See `Content.judged`."""


class Around(NamedTuple):
    """The text around a candidate that is shown."""

    before: Array
    after: str
    """The text after it, left out if the candidate ends with that."""
    behind: Array
    """Its ids."""


class PromptBuilder:
    """Builds the prompts of one engine with its tokenizer, its chat template and the texts of a graph."""

    def __init__(self, tokenizer: Tokenizer, prompts: Prompts = DEFAULT_PROMPTS, where: str = "its chat template") -> None:
        """Raises `GraphError` at `where` for a template that cannot ask a problem, or a tokenizer without the reasoning tags that `prompts`
        names."""
        special = tokenizer.special_ids
        prompts = structs.replace(prompts, thought=own_marks(special, prompts.thought))
        self.tokenizer, self.prompts, self._where, marks = tokenizer, prompts, where, prompts.thought
        if marks != Marks() and (missing := {marks.open, marks.close} - special.keys()):
            raise GraphError(where, f"its tokenizer has no token {min(missing)!r}, set in `prompts.thought`")
        # A template may switch thinking off: then it closes an empty thought before the reply.
        reply = tokenizer.render([{"role": "user", "content": "problem"}]).rstrip()
        self.thinks = marks.open in special and marks.close in special and not reply.endswith(marks.close)
        self.think_close_id: int | None = special[marks.close] if self.thinks else None
        self.close_thought_ids = tokenizer.encode(f"{marks.close}{DELIMITER}" if self.thinks else DELIMITER)
        memo = lru_cache(MOST_KNOWN)
        self.options = memo(self._options_among)
        """The options of a choice among this many candidates: `options(unit, candidates, reject)`."""
        self._known, self._cut_chat, self._question = memo(self._encoded), memo(self._chat_around), memo(self._cut_question)
        self._wording, self._ends, self._reply = memo(self._around_each), memo(self._ends_with), memo(self._reply_from)
        self._opening = self._cut_opening(prompts.before())
        self.generation("")  # a tokenizer that fails on the words of every prompt fails before a chain starts

    def generation(self, problem: str, options: Sequence[str] = (), history: Sequence[Message] = ()) -> list[int]:
        """The token ids of the prompt that asks `problem`, which has these `options`, after the chat `history`, up to where the thought
        begins. Raises `RequestRefused` where the chat template cannot say such a chat."""
        said = self.prompts.asked(problem, options)
        try:
            opening = self._cut_opening(self.prompts.before(history)) if history else self._opening
        except GraphError as error:
            roles = ", ".join(message.role for message in history)
            raise RequestRefused(f"its chat template cannot render the messages before the problem ({roles}): {error}") from error
        return self.tokenizer.encode_parts([*opening.before, _stripped(said, opening.margins), opening.after])

    def choose(
        self,
        context: Sequence[int],
        candidates: Sequence[Sequence[int]],
        *,
        unit: str = "step",
        reject: bool = True,
        problem: str = "",
        begin: int = 0,
    ) -> OptionPrompt:
        """The question for the best of the `candidates` of a thought (SpecCoT 3.4, SCoT 3.4).

        `context` are the ids of the prompt and the thought, which begins at `begin`, and `problem` is its problem. `unit` says what the
        candidates are, `step` or `thought`; with `reject` there is an option that means none of them.
        """
        asked, options = self.asked_of(unit), self.options(unit, len(candidates), reject)
        if unit == "thought":
            candidates = [self._stripped_end(ids) for ids in candidates]
        shown, places = self._shown(self._wording(asked.candidate, options.labels), candidates)
        none = ""
        if options.none is not None:
            places.insert(options.none, (0, 0))
            none = filled(asked.none, {"label": options.all[options.none]})
        return self._asked(asked, context, begin, {"problem": problem, "none": none}, shown, places, options.all)

    def score(self, context: Sequence[int], candidate: Sequence[int], *, problem: str = "", begin: int = 0) -> OptionPrompt:
        """The question for the utility, 0 to 9, of a `candidate`, as if it were committed (SpecReason 4.1); see `choose`.

        If the candidate is accepted, its keys and values are already in the engine's cache.
        """
        asked, places = self.prompts.score, [(len(context), len(context) + len(candidate))]
        shown = array("I", context)
        shown.extend(candidate)
        return self._asked(asked, shown, begin, {"problem": problem}, array("I"), places, asked.labels)

    def trial(self, context: Sequence[int]) -> Array:
        """`context`, whose thought is not over, closed, and the beginning of an answer (`Prompts.trial`)."""
        ids = array("I", context)
        ids.extend(self.close_thought_ids)
        ids += self._known(self.prompts.trial)
        return ids

    def ask(self, context: Sequence[int], turn: str | Sequence[str | Sequence[int]], prefill: str, options: Sequence[str]) -> OptionPrompt:
        """`context`, then a turn of the user, then a reply that begins with `prefill` and continues with one of the `options`. A judge's
        question is asked with this. `turn` is a text, or texts and token ids in the order in which they are said, the last one a text:
        texts are encoded one by one and stay text, ids among them enter the prompt as they are. The prompt repeats `context` to the last
        token, which an engine's prefix cache holds. Raises `RequestRefused` where the engine's tokenizer has no single token for one of the
        `options` at that place; `can_name` tells before."""
        *parts, question = [turn] if isinstance(turn, str) else turn
        reply = self._thinking(self._turn[1], "after_thought")
        tail, option_ids = self._question(str(question), reply, prefill, tuple(options))
        _check_named(option_ids, options, prefill)
        ids = array("I", context)
        ids += self._turn[0]
        for part in parts:
            ids.extend(self.tokenizer.encode_parts(["", part]) if isinstance(part, str) else part)
        ids += tail
        return OptionPrompt(ids, option_ids)

    def can_name(self, question: str, prefill: str, options: Sequence[str]) -> bool:
        """Whether the tokenizer has a single token for each of the `options`, where a turn ends with `question` and the reply begins
        with `prefill`."""
        reply = self._thinking(self._turn[1], "after_thought")
        return len(self._question(question, reply, prefill, tuple(options))[1]) == len(options)

    def flaw(self, asked: Question, options: Sequence[str]) -> str | None:
        """Why a question cannot be asked, in one clause: its tokenizer cannot name the `options` with one token each, or its template lacks
        what the question omits; None where it can."""
        if asked.omit and not self._alone.before[-1].endswith(asked.omit):
            return f"its engine's chat template has no {asked.omit!r} right before the turn, which its prompt omits; leave out `omit`"
        *_, last = pieces(asked.turn)
        named = self._question(last, self._reply(asked.form, asked.reply), asked.prefill, tuple(options))[1]
        if len(named) == len(options):
            return None
        return f"its engine's tokenizer has no single token for the label {options[len(named)]!r} after {asked.prefill!r}"

    def asked_of(self, unit: str) -> ChoosePrompt:
        """How the best candidate is asked for, where those are steps or whole thoughts."""
        return self.prompts.choose_thought if unit == "thought" else self.prompts.choose

    # What is asked.

    def _asked(
        self,
        asked: Question,
        context: Sequence[int],
        begin: int,
        said: Mapping[str, str],
        shown: Array,
        places: Places,
        options: tuple[str, ...],
    ) -> OptionPrompt:
        """The prompt of a question. `said` and `shown` stand at the places of its turn; `places` are of candidates in `shown`, or in the
        context where nothing is shown."""
        ids, shift = array("I"), 0
        text, alone = "", asked.form == "alone"
        if not alone:
            ids.extend(context)
            ids += self._turn[0]
        turn = pieces(asked.turn)
        for number, piece in enumerate(turn):
            if not number % 2:
                text += piece
            elif piece in ("candidates", "thought"):
                ids.extend(self._begun(text, asked.omit) if alone and not ids else self._known(text))
                if piece == "candidates":
                    shift = len(ids)
                elif not shown:
                    shift = len(ids) - begin
                ids.extend(shown if piece == "candidates" else context[begin:])
                text = ""
            else:
                text += said[piece]
        text = text.rstrip(self._opening.margins.right)
        tail, option_ids = self._question(text, self._reply(asked.form, asked.reply), asked.prefill, options)
        _check_named(option_ids, options, asked.prefill)
        ids += tail
        return OptionPrompt(ids, option_ids, tuple([(start + shift, end + shift) if end else (0, 0) for start, end in places]))

    def _options_among(self, unit: str, candidates: int, reject: bool) -> Options:
        return self.asked_of(unit).options(candidates, reject)

    def _shown(self, around: Iterable[Around], candidates: Sequence[Sequence[int]]) -> tuple[Array, list[tuple[int, int]]]:
        """The ids of all candidates as they are shown, and between which of these each stands."""
        shown, places = array("I"), []
        for (before, after, behind), candidate in zip(around, candidates, strict=False):
            shown += before
            start = len(shown)
            shown.extend(candidate)
            places.append((start, len(shown)))
            if not self._ends(tuple(candidate[-2:]), after):
                shown += behind
        return shown, places

    def _ends_with(self, tail: tuple[int, ...], after: str) -> bool:
        """Whether a candidate with these last ids ends with `after`."""
        return self.tokenizer.decode(tail).endswith(after)

    def _around_each(self, wording: str, labels: tuple[str, ...]) -> list[Around]:
        """What stands around each candidate."""
        parts = ([filled(part, {"label": label}) for part in wording.split("{{candidate}}")] for label in labels)
        return [Around(self._known(before), after, self._known(after)) for before, after in parts]

    def _stripped_end(self, thought: Sequence[int]) -> Sequence[int]:
        """A candidate without white space at its end."""
        end = len(thought)
        while end and (last := self.tokenizer.decode(thought[end - 1 : end])) != last.rstrip():
            end -= 1
            if last := last.rstrip():  # a token of text and white space
                return [*thought[:end], *self._known(last)]
        return thought[:end]

    def _begun(self, text: str, omit: str) -> list[int]:
        """The ids of a chat that begins with a question, without the text of the template that the question omits."""
        opening = self._alone
        *before, last = opening.before
        return self.tokenizer.encode_parts([*before, last.removesuffix(omit), text.lstrip(opening.margins.left)])

    def _encoded(self, text: str) -> Array:
        return array("I", self.tokenizer.encode_parts(["", text]))

    def _cut_question(self, question: str, reply: str, prefill: str, labels: tuple[str, ...]) -> tuple[Array, tuple[int, ...]]:
        """Ids from the question to just before the one token that names an option, and those tokens.

        Labels whose token would change the ids before it are left out from the first such on.
        """
        whole = [self.tokenizer.encode_parts(["", question, reply, prefill + label]) for label in labels]
        tail = whole[0][:-1]
        usable: list[int] = []
        for ids in whole:
            if ids[:-1] != tail or ids[-1] in usable:
                break
            usable.append(ids[-1])
        return array("I", tail), tuple(usable)

    # What the chat template says around it.

    @cached_property
    def _alone(self) -> Opening:
        """How the chat of a question begins that stands alone."""
        return self._cut_opening([Message("system", self.prompts.system)] if self.prompts.system is not None else [])

    def _cut_opening(self, messages: Sequence[Message]) -> Opening:
        parts, margins = self._cut_chat((*(message.role for message in messages), "user"))
        before = [parts[0]]
        for message, margin, part in zip(messages, margins, parts[1:], strict=False):
            before += [_stripped(message.content, margin), part]
        return Opening(before, margins[-1], parts[-1])

    def _chat_around(self, roles: tuple[str, ...]) -> tuple[list[str], list[Margins]]:
        """The template's parts around a chat of these roles, and the whitespace that it strips from each text. Raises `GraphError`."""
        margins = [stripped_margins(partial(self._around, roles, place), place) for place in range(len(roles))]
        return self._around(roles, 0, ""), margins

    def _around(self, roles: Sequence[str], place: int, margin: str) -> list[str]:
        """The parts that the template puts around texts of these roles, of which that at `place` has a `margin` on either side."""
        names = [f"q1w2place{number}x" for number in range(len(roles))]
        texts = [f"{margin}{name}{margin}" if number == place else name for number, name in enumerate(names)]
        text = self.tokenizer.render([{"role": role, "content": said} for role, said in zip(roles, texts, strict=True)])
        if self.thinks and not text.rstrip().endswith(self.prompts.thought.open):
            text += f"{self.prompts.thought.open}\n"
        return parts_of(text, *names, where=self._where)

    @cached_property
    def _turn(self) -> tuple[Array, str]:
        """Ids between an assistant's turn and the user's next one, and the text from the end of that to the reply. Raises `GraphError` for
        a template without such turns, which only an engine that judges needs."""
        _, _, before, reply = self._around(("user", "assistant", "user"), 0, "")
        return array("I", self.tokenizer.encode(before)), self._unopened(reply)

    def _unopened(self, reply: str) -> str:
        """The beginning of a reply, but not of a thought."""
        mark = self.prompts.thought.open
        return reply.rstrip().removesuffix(mark) if self.thinks and reply.rstrip().endswith(mark) else reply

    def _reply_from(self, form: str, how: str) -> str:
        """What stands between the end of a question of this form and its prefill; see `Question.reply`."""
        return self._thinking(self._unopened(self._alone.after) if form == "alone" else self._turn[1], how)

    def _thinking(self, reply: str, how: str) -> str:
        """`reply`, which then goes on behind an empty thought, within one, or without one."""
        marks = self.prompts.thought
        if not self.thinks or how == "plain":
            return reply
        return f"{reply}{marks.open}" if how == "in_thought" else f"{reply}{marks.open}{DELIMITER}{marks.close}{DELIMITER}"


def _stripped(text: str, margins: Margins) -> str:
    return text.lstrip(margins.left).rstrip(margins.right)


def _check_named(option_ids: Sequence[int], options: Sequence[str], prefill: str) -> None:
    if len(option_ids) < len(options):
        raise RequestRefused(f"the engine's tokenizer has no single token for {options[len(option_ids)]!r} after {prefill!r}")


def own_marks(special: Iterable[str], thought: Marks) -> Marks:
    """The reasoning tags of a model with these `special` tokens: its own (`[THINK]`) where it lacks the usual ones and no others are asked
    for than these; else `thought`."""
    special = list(special)
    if thought == Marks() and not {thought.open, thought.close} <= {*special}:
        opens, closes = (next((text for text in special if mark.fullmatch(text)), None) for mark in (OPEN, CLOSE))
        return Marks(open=opens, close=closes) if opens and closes else thought
    return thought


def parts_of(text: str, *placeholders: str, where: str) -> list[str]:
    """The parts of the rendered `text` around the `placeholders`, one more than there are of these.

    Raises `GraphError` at `where` for a template that leaves one of them out, says it twice, or says them in another order.
    """
    parts, rest = [], text
    for placeholder in placeholders:
        if (count := text.count(placeholder)) != 1:
            raise GraphError(where, f"shows a message of the chat {count} times, not once" if count else "omits a message of the chat")
        before, found, rest = rest.partition(placeholder)
        if not found:
            raise GraphError(where, "changes the order of the messages")
        parts.append(before)
    return [*parts, rest]


def stripped_margins(around: Callable[[str], Sequence[str]], place: int = 0) -> Margins:
    """The margins that a template strips from a text. `around` gives the template's parts around all texts, this one's at `place` and
    after it.

    A template is taken to leave the inside of a text alone.
    """
    before, after = around("")[place : place + 2]
    doubled = {character: around(2 * character)[place : place + 2] for character in WHITE_SPACE}
    left = "".join(character for character, (start, _) in doubled.items() if start == before)
    right = "".join(character for character, (_, end) in doubled.items() if end == after)
    return Margins(left, right)
