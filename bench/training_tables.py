"""What training an adapter brings, as figures, tables and curves: tables of runs and logs of trainings enter, Markdown and PNG leave.

Nothing is run here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from msgspec import Struct
from plotly.subplots import make_subplots

from pipeline.analysis.compare.cells import Table, number, percent
from pipeline.analysis.compare.figures import figures
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.compare.tables import INTERVALS
from pipeline.analysis.compare.written import markdown_table
from pipeline.analysis.quality.estimates import NOTHING, Estimate, mean, outcomes, ratio, share
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.report.figures.style import SERIES, axes, layout

DRAFTED = {"drafted", "longest", "rejected"}
"""Kinds of texts that are no committed steps; see `step_texts.read_texts`."""
Log = Sequence[Mapping[str, float]]
"""What a trainer has logged, a row for each time."""
Logs = Mapping[str, Log]
"""The logs of trainings, by what each is called."""


class Trained(Struct, frozen=True, kw_only=True):
    """A training as it was carried out."""

    name: str
    folder: str
    """Where its log is, within the folder of the measurement."""
    examples: int
    """That it learnt from."""
    parameters: int
    """Trained ones."""
    steps: int
    seconds: float


class Selecting(Struct, frozen=True, kw_only=True):
    """How well one verifier chose among the drafts of the test set (SCoT 4.4)."""

    name: str
    trained: Trained | None = None
    class_1: Estimate
    """A right draft was selected where there was one."""
    class_2: Estimate
    """All were rejected where none was right."""
    all: Estimate
    """Both together."""


class System(Struct, frozen=True, kw_only=True):
    """One way to solve the test set."""

    name: str
    accuracy: Estimate
    drafts_right: Estimate = NOTHING
    """Of the whole thoughts that were drafted, those that state the right answer."""
    accepted: Estimate = NOTHING
    """Share of the problems of which a draft was accepted."""
    tokens: Mapping[str, Estimate] = {}
    """Sampled tokens a problem, by role."""


class Thinking(Struct, frozen=True, kw_only=True):
    """What one model's thoughts are like when it solves the test set alone."""

    name: str
    tokens: Estimate
    """Of a thought."""
    second_thoughts: Estimate
    """Words of second thoughts (`step_texts.REFLECTIVE`) in a thought."""
    accuracy: Estimate


class Agreement(Struct, frozen=True, kw_only=True):
    """The same choices, asked of two engines that serve the same adapter."""

    engines: tuple[str, str]
    choices: int
    equal: Estimate
    """Share of the choices of which both engines have the same likeliest option."""
    farthest: float
    """The largest difference of the log probability of an option, nats."""


class PairResults(Struct, frozen=True, kw_only=True):
    """All that was measured of one pair of models."""

    pair: str
    problems: int
    """Of the test set."""
    class_1: int
    class_2: int
    """ThoughtChoices of each class."""
    selecting: tuple[Selecting, ...]
    systems: tuple[System, ...]
    alignment: Trained | None = None
    thinking: tuple[Thinking, ...] = ()
    agreement: Agreement | None = None
    """Null where it was not asked for."""


def random_draft(choices: ThoughtChoices) -> Estimate:
    """The expected accuracy of a draft that is drawn at random from those of each problem."""
    drawn, right = np.bincount(choices.problem), np.bincount(choices.problem, choices.right_drafts)
    return mean(right[drawn > 0] / drawn[drawn > 0])


def best_draft(choices: ThoughtChoices) -> Estimate:
    """The share of the problems of which some draft is right: nobody who only chooses among them does better."""
    return outcomes(choices.problem, (choices.right_drafts > 0).astype(float))


def selecting(name: str, run: RunTable, trained: Trained | None = None) -> Selecting:
    """How well the verifier of `run`, which chose among whole thoughts, chose."""
    found, choices = figures(run, run).selection, run.choices
    assert found is not None
    assert choices is not None
    right = np.where(choices.right_drafts > 0, choices.picked_right, choices.rejected)
    every = outcomes(choices.problem, right)
    return Selecting(name=name, trained=trained, class_1=found.class_1_right, class_2=found.class_2_right, all=every)


def chance(run: RunTable) -> Selecting:
    """What a draft that is drawn at random reaches, which rejects nothing."""
    found, choices = figures(run, run).selection, run.choices
    assert found is not None
    assert choices is not None
    none = Estimate(0.0) if found.class_2 else NOTHING
    return Selecting(name="a draft at random", class_1=found.by_chance, class_2=none, all=random_draft(choices))


def system(name: str, run: RunTable) -> System:
    """The figures of a system that was run."""
    found = figures(run, run)
    verified = run.accepted + run.fallbacks
    accepted = share(run.accepted, verified) if verified.any() else NOTHING
    right = NOTHING if run.choices is None else random_draft(run.choices)
    return System(name=name, accuracy=found.accuracy, drafts_right=right, accepted=accepted, tokens=found.output_tokens)


def by_reference(choices: ThoughtChoices) -> list[System]:
    """What systems without a verifier, and with one that knows the answers, would make of the recorded drafts."""
    return [
        System(name="a draft at random, computed", accuracy=random_draft(choices), accepted=Estimate(1.0)),
        System(name="a right draft wherever there is one, computed", accuracy=best_draft(choices)),
    ]


def thinking(name: str, run: RunTable) -> Thinking:
    """What the thoughts of a model alone are like."""
    said = [text for kind, text in run.texts.items() if kind not in DRAFTED]
    words = sum((text.reflective for text in said), np.zeros(len(run.chains)))
    found = figures(run, run)
    return Thinking(name=name, tokens=found.thought_tokens, second_thoughts=ratio(words, run.chains), accuracy=found.accuracy)


def agreement(engines: tuple[str, str], ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Agreement:
    """How far two engines agree, from the log probabilities that each gave to the options of the same choices."""
    pairs = [(np.array(one), np.array(other)) for one, other in zip(ours, theirs, strict=True)]
    equal = np.array([one.argmax() == other.argmax() for one, other in pairs], float)
    farthest = max(float(np.abs(one - other).max()) for one, other in pairs)
    return Agreement(engines=engines, choices=len(pairs), equal=outcomes(np.arange(len(pairs)), equal), farthest=farthest)


def page(about: str, results: Iterable[PairResults], pictures: Mapping[str, Sequence[str]], absent: Mapping[str, str]) -> str:
    """All of training.md; `pictures` are the lines that show the curves of each pair, `absent` says why a pair is not there."""
    parts = [about, "# What training an adapter brings", INTRODUCTION, INTERVALS]
    for found in results:
        parts += section(found, pictures.get(found.pair, ()))
    parts += [f"## {pair}\n\nNot measured: {why}." for pair, why in absent.items()]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = (
    "Adapters are trained with `pipeline train` on what `pipeline export` makes of runs over training problems, and are measured on the "
    "test set, which neither the bundled models nor the adapters have seen. All trainings of `train select` have the same number of steps, "
    "however many problems they learn from, and the problems of a smaller set are in the larger ones. A choice of which "
    "it is not known what is right is left out. Minutes are of a training on the machine above, whatever else it was doing."
)


def section(found: PairResults, pictures: Sequence[str]) -> Iterator[str]:
    """The tables of one pair."""
    yield f"## {found.pair}"
    yield f"{found.problems} test problems; of the choices among their drafts {found.class_1} are of class 1, {found.class_2} of class 2."
    yield "\n".join(f"- {sentence}" for sentence in verdict(found))
    yield markdown_table(selecting_table(found.selecting))
    yield from pictures
    yield markdown_table(systems_table(found.systems))
    if found.thinking:
        yield markdown_table(thinking_table(found.thinking, found.alignment))
    if found.agreement is not None:
        yield markdown_table(agreement_table(found.agreement))


def verdict(found: PairResults) -> Iterator[str]:
    """The outcome in a few sentences."""
    before = next(each for each in found.selecting if each.name == UNTUNED)
    for after in found.selecting:
        if after.trained is not None:
            yield (
                f"{after.name}: class 1 from {percent(before.class_1)} to {percent(after.class_1)}, "
                f"class 2 from {percent(before.class_2)} to {percent(after.class_2)}."
            )


UNTUNED = "untuned"
"""The name of the verifier without an adapter."""


def selecting_table(rows: Iterable[Selecting]) -> Table:
    """Right choices by class, before and after."""
    cells = [
        (each.name, *trained_cells(each.trained), *(percent(accuracy) for accuracy in (each.class_1, each.class_2, each.all)))
        for each in rows
    ]
    columns = ("verifier", *TRAINED, "class 1 right", "class 2 right", "all right")
    note = (
        "Class 1: some draft is right, and a right one is selected. Class 2: none is right, and all are rejected (SCoT 4.4). A draft is "
        "right whose thought states the right answer."
    )
    return Table("Choosing among whole thoughts (SCoT 3.4)", columns, tuple(cells), note)


TRAINED = ("examples", "trained parameters", "steps", "minutes")


def trained_cells(trained: Trained | None) -> tuple[str, ...]:
    """The cells of the columns `TRAINED`."""
    if trained is None:
        return ("-",) * len(TRAINED)
    return f"{trained.examples:,}", f"{trained.parameters:,}", f"{trained.steps:,}", f"{trained.seconds / 60:.1f}"


def systems_table(rows: Sequence[System]) -> Table:
    """Systems side by side."""
    cells = [
        (
            each.name,
            percent(each.accuracy),
            percent(each.drafts_right),
            percent(each.accepted),
            *(number(each.tokens.get(role, NOTHING)) for role in ("target", "draft")),
        )
        for each in rows
    ]
    columns = (
        "system",
        "accuracy",
        "drafts that are right",
        "problems with an accepted draft",
        "target's tokens a problem",
        "draft's tokens a problem",
    )
    note = "Tokens: all that were sampled, whatever became of them; a choice is one of the target's. Right drafts as above."
    return Table("Systems on the test set", columns, tuple(cells), note)


def thinking_table(rows: Sequence[Thinking], trained: Trained | None) -> Table:
    """Thoughts of the draft before and after alignment, and of the target."""
    cells = [(each.name, number(each.tokens), number(each.second_thoughts), percent(each.accuracy)) for each in rows]
    columns = ("model alone", "tokens of a thought", "words of second thoughts in it", "accuracy")
    how = "" if trained is None else f"{trained.name}: {', '.join(map(' '.join, zip(trained_cells(trained), TRAINED, strict=True)))}. "
    return Table("Thinking behaviour alignment (SCoT 3.3, table 2)", columns, tuple(cells), how + OWN_ANSWERS)


OWN_ANSWERS = (
    "Accuracy is that of the answer which the model itself writes behind its thought. Alignment trains thoughts and no answers; SCoT has "
    "the target write the answer, so that what counts there is how many drafts are right, in the table above."
)


def agreement_table(found: Agreement) -> Table:
    """Two engines that serve the same adapter."""
    row = (" and ".join(found.engines), str(found.choices), percent(found.equal), f"{found.farthest:.2g}")
    columns = ("engines", "choices", "the same option is chosen", "largest difference of a log probability")
    return Table("The same adapter on two engines", columns, (row,))


def draw_selecting(logs: Logs, path: Path) -> None:
    """Draw the losses and the accuracies by class of trainings that choose."""
    titles = ("loss (nats): training, and validation as points", "validation, class 1", "validation, class 2")
    figure = make_subplots(cols=3, subplot_titles=titles, horizontal_spacing=0.06)
    for colour, (name, rows) in zip(SERIES, logs.items(), strict=False):
        _losses(figure, name, rows, colour)
        for column, field in ((2, "class_1_accuracy"), (3, "class_2_accuracy")):
            _line(figure, column, name, rows, f"eval_{field}", colour, "lines+markers", legend=False)
            figure.update_yaxes(range=[0, 1.02], tickformat=".0%", col=column)
    _write(figure, path)


def draw_losses(logs: Logs, path: Path) -> None:
    """Draw the losses of trainings."""
    figure = make_subplots(cols=1, subplot_titles=("loss (nats a token): training, and validation as points",))
    for colour, (name, rows) in zip(SERIES, logs.items(), strict=False):
        _losses(figure, name, rows, colour)
    _write(figure, path)


def _losses(figure: go.Figure, name: str, rows: Log, colour: str) -> None:
    for field, mode in (("loss", "lines"), ("eval_loss", "markers")):
        _line(figure, 1, name, rows, field, colour, mode, legend=mode == "lines")
    figure.update_yaxes(rangemode="tozero", col=1)


def _line(figure: go.Figure, column: int, name: str, rows: Log, field: str, colour: str, mode: str, *, legend: bool) -> None:
    known, look = [row for row in rows if field in row], {"color": colour}
    points = {"x": [row["step"] for row in known], "y": [row[field] for row in known]}
    figure.add_trace(go.Scatter(**points, name=name, showlegend=legend, mode=mode, line=look, marker=look), row=1, col=column)


def _write(figure: go.Figure, path: Path) -> None:
    axes(figure.update_layout(layout(420)))
    figure.update_layout(margin={"t": 90}, legend={"y": 1.16})
    figure.update_xaxes(title="step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_image(path, width=1200, height=460, scale=1.5)
