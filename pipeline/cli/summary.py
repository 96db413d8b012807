"""A run's summary on stdout: a run folder enters; ten lines leave, or one, or all figures as tables or JSON."""

import shlex

import msgspec
from msgspec import structs

from pipeline.analysis.headline import about, engines_table, facts_table, headline, stages_table, summary_of
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.located import Located
from pipeline.cli.terminal import notice_settings, print_line, print_notice, print_page
from pipeline.run.prepare import Prepared
from pipeline.text import one_line


def print_summary(run: Located, *, with_about: bool = False, as_json: bool = False) -> None:
    """Print the summary of a run as the command was asked to; `with_about`: with a line that says what is solved with what.

    Raises `InputError` where there is no run.
    """
    found = summary_of(run.path)
    if as_json:
        print_page(msgspec.json.encode(found, order="sorted"))
        return
    if run.url:
        found = structs.replace(found, resumable=False)  # a baseline needs a folder on this machine
    told = headline(found, shlex.quote(str(run)))
    if notice_settings().quiet:
        print_line(f"{told.essential}   {run}")
        return
    blocks = [
        [*([told.about] if with_about else []), f"{told.head}   {run}"],
        [f"  {line}" for line in told.lines],
        [f"{what:<10}  {command}" for what, command in told.commands],
    ]
    print_page("\n\n".join("\n".join(map(one_line, block)) for block in blocks))
    if notice_settings().verbose:
        print_page("".join(f"\n{name:<14} {one_line(text)}" for name, text in facts_table(found).rows))
        for table in (engines_table(found), stages_table(found)):
            print_table(table, PlainConsole())


def print_about(run: Prepared) -> None:
    """Say what a run will solve with what, and in which folder, before its engines are opened."""
    chosen, plan, state = run.options, run.plan, run.resume_state
    said = about(plan.name, run.record.input.rows, run.record.input.chains, plan.models, chosen.max_live, toy=plan.has_toy_models)
    replicas = ""
    if chosen.replicas > 1:
        replicas = f" on each of {chosen.replicas} replicas" if run.on_replicas else " in one process, as its shards are merged"
    over = f", {state.totals.chains:,} are over already" if state.totals.chains else ""
    print_notice(f"{said}{replicas}{over}, in {run.folder}")
