"""`report.html` of a training: its log and its config enter, one self-contained page with curves and tables leaves."""

from collections.abc import Sequence

import msgspec
import plotly.graph_objects as go

from pipeline.analysis.compare.cells import Table, plain, plain_percent
from pipeline.report.figures.style import BLUE, GREEN, GREY, ORANGE, axes, layout
from pipeline.report.page import Figure, Section, page
from pipeline.training.lora.config import TrainConfig
from pipeline.training.lora.log import Row, StepRow, ValidationRow, validations
from pipeline.training.lora.output import Record

CURVES = (
    ("class_1_accuracy", "class 1: some option is right", BLUE, "class_1_chance"),
    ("class_2_accuracy", "class 2: none is right", ORANGE, "class_2_chance"),
    ("accuracy", "all examples", GREEN, "chance"),
)
"""Accuracies of a validation: field, words, colour, and the field of what chance reaches."""


def training_page(name: str, config: TrainConfig, record: Record, rows: Sequence[Row]) -> str:
    """The HTML of the page on the training `name`, whose log has these rows."""
    found = validations(rows)
    figures = [
        Figure("Loss", _losses([row for row in rows if isinstance(row, StepRow)], found), "Validation at step 0: the untouched model.")
    ]
    if any(row.accuracy is not None for row in found):
        note = "Classes as in SCoT 4.4. Dashed: an option drawn at random. The likeliest option is chosen, as in serving."
        figures.append(Figure("Validation accuracy by class", _accuracies(found), note))
    results = Section(title="Training", text=_about(record), figures=figures, tables=[_figures_table(found)] if found else [])
    data = Section(title="Data", tables=[_files_table(record)])
    made = Section(title="Config", tables=[_config_table(config)], text=[f"`{command}`" for command in record.commands])
    return page(f"Training {name}", [results, data, made])


def _about(record: Record) -> list[str]:
    outcome = record.outcome
    if outcome is None:
        return [f"`pipeline train {record.task}` of `{record.model}`, not finished."]
    what = f"{outcome.steps:,} steps on {outcome.device}, {outcome.precision}, {outcome.trained_parameters:,} trained parameters"
    return [f"`pipeline train {record.task}` of `{record.model}`: {what}."]


def _losses(steps: Sequence[StepRow], found: Sequence[ValidationRow]) -> go.Figure:
    figure = go.Figure(layout=layout(340, hovermode="x unified"))
    figure.add_trace(go.Scatter(x=[row.step for row in steps], y=[row.loss for row in steps], name="training", line={"color": GREY}))
    if found:
        points = {"x": [row.step for row in found], "y": [row.loss for row in found]}
        figure.add_trace(go.Scatter(**points, name="validation", mode="lines+markers", line={"color": BLUE}))
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="loss (nats)", rangemode="tozero")
    return axes(figure)


def _accuracies(found: Sequence[ValidationRow]) -> go.Figure:
    figure = go.Figure(layout=layout(340, hovermode="x unified"))
    for field, words, colour, chance in CURVES:
        known = [row for row in found if getattr(row, field) is not None]
        if not known:
            continue
        steps = [row.step for row in known]
        line = {"x": steps, "y": [getattr(row, field) for row in known], "name": words, "mode": "lines+markers"}
        figure.add_trace(go.Scatter(**line, line={"color": colour}))
        by_chance = [getattr(row, chance) for row in known]
        figure.add_trace(go.Scatter(x=steps, y=by_chance, name=f"{words}, by chance", line={"color": colour, "dash": "dash"}))
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="accuracy", range=[0, 1.02], tickformat=".0%")
    return axes(figure)


def _figures_table(found: Sequence[ValidationRow]) -> Table:
    shares = {"accuracy", "chance", "class_1_accuracy", "class_1_chance", "class_2_accuracy", "class_2_chance"}
    columns = [name for name in ValidationRow.__struct_fields__[2:-1] if any(getattr(row, name) is not None for row in found)]
    rows = ((f"{row.step:,}", *((plain_percent if name in shares else plain)(getattr(row, name)) for name in columns)) for row in found)
    return Table("Validations", ("step", *(name.replace("_", " ") for name in columns)), tuple(rows))


def _files_table(record: Record) -> Table:
    columns = ("file", "rows", "train", "validation", "too long", "of a test set", "sha256")
    rows = (
        (file.name, file.form, f"{file.train:,}", f"{file.validation:,}", f"{file.too_long:,}", f"{file.held_out:,}", file.sha256[:16])
        for file in record.files
    )
    runs = sorted({run for file in record.files for run in file.runs})
    return Table("Files", columns, tuple(rows), "; ".join(runs))


def _config_table(config: TrainConfig) -> Table:
    values = msgspec.to_builtins(config)
    lora = {f"lora.{name}": value for name, value in values.pop("lora").items()}
    rows = ((name, msgspec.json.encode(value).decode()) for name, value in {**values, **lora}.items())
    return Table("Values", ("key", "value"), tuple(rows))
