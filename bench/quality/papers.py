"""What holds of the claims of the three papers, with the bundled pairs of models and on simulated machines.

    python -m bench.quality.papers            one to two hours on two quiet cores; `make build/inflated.yaml build/rambling-aligned` first
    python -m bench.quality.papers --small    a few problems each, in minutes: goes through everything, prints the page, and keeps nothing

The runs are those of the study bench/quality/papers.yaml, kept in build/papers and continued when this is started again. Writes
bench/papers.md and the figures of all runs beside it, bench/papers/*.csv.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import click
from msgspec import structs

from bench.figures import RESULTS, ROOT, begin, go_on, grid, origin
from bench.quality.judging import CLAIMS, Group, Judged, Site, Verdict, judge, mean_of, noise_of
from bench.runs import say, whole, write_problems
from pipeline.analysis.compare.cells import plain
from pipeline.analysis.compare.compare import compare
from pipeline.analysis.compare.runs import RunTable, read_runs
from pipeline.analysis.compare.studies import Place
from pipeline.analysis.compare.written import as_csv
from pipeline.analysis.simulated import of_facts
from pipeline.graph.yaml_file import shown
from pipeline.session.observer import Observer
from pipeline.sweep.plan import PlannedPoint, SweepPlan
from pipeline.sweep.study import StudyOptions, plan_study, score_steps
from pipeline.sweep.sweep import SweepResult, carry_out

STUDY = ROOT / "bench/quality/papers.yaml"
PAGE, TABLES = ROOT / "bench/papers.md", ROOT / "bench/papers"
INTRODUCTION = """\
# The papers' claims

None of the papers' own models was run. What stands here was measured with toy models on a CPU: the bundled pairs `tiny` and `wordy`, each
for one kind of problem, `rambling`, the target of `wordy` with a draft that thinks longer than it does, and `inflated`, which is `tiny`
with a target of 100 million parameters; or was simulated (sim MACHINE/TEXTS). {simulator} A claim that holds shows that this implementation
has the effect where models have the property that it rests on; it says nothing about other models, and what does not hold says nothing
about the papers' ones. Settings, and what each paper leaves open: [The papers](../docs/pages/reproduce/papers.md).

A claim *holds* at a site where the whole 95 % interval is on its side, *does not hold* where the whole interval is on the other, and
*cannot be said* where it includes the bound or there is none. Intervals are over problems; of a ratio of measured times they are wider by
what runs of the same work differ in. A speed-up is printed as a product: shorter text x tokens a second. *Shown* is what holds at one site
or more; the others stand beside it, and the headlines are not told again below."""

WHAT_WAS_RUN = """\
Figures of every run with their intervals are in the files. Do not compare the times of the kinds `quality` and `training`: other work may
have run beside them, and no claim is about them."""


def planned(folder: Path, *, small: bool) -> SweepPlan:
    """The runs, one after the other, as it is their time that counts; writes the problems of the simulated ones."""
    write_problems(ROOT / "build/simulated-problems.parquet", 128)
    return plan_study(StudyOptions(file=STUDY, small=small, output=folder, resume=folder.exists(), workers=1))


def families(plan: SweepPlan) -> dict[str, dict[str, list[PlannedPoint]]]:
    """By `SITE KIND` the points of each system, several where it is run again: the graph with what was varied, its batch size where that
    is one of several, and its engines where it is on several."""
    assert plan.study is not None
    points = {point.name: point for point in plan.points}
    members: dict[str, dict[str, Place]] = {}
    for heading, places in plan.study.groups.items():
        members.setdefault(heading.partition(", ")[0].partition(":")[0], {}).update(places)
    found: dict[str, dict[str, list[PlannedPoint]]] = {}
    for family, places in members.items():
        named = {name: (_system(points[name], place), points[name].coordinates.batch_size, place.engines) for name, place in places.items()}
        several = {system for system, _, engines in named.values() if any(one == system and on != engines for one, _, on in named.values())}
        sizes = {size for _, size, _ in named.values()}
        for name, (system, size, engines) in named.items():
            key = system + (f" b{size}" if len(sizes) > 1 else "") + (f" on {engines}" if system in several else "")
            found.setdefault(family, {}).setdefault(key, []).append(points[name])
    return found


def _system(point: PlannedPoint, place: Place) -> str:
    return f"{point.coordinates.graph} {shown(place.params)}".strip()


def read_sites(plan: SweepPlan, result: SweepResult) -> list[Site]:
    """All sites with the runs of `plan` that were made."""
    made = {point.folder: result.folder / "runs" / point.folder for point in result.points}
    tables = dict(zip(made, read_runs(list(made.values())), strict=True)) if made else {}
    return [_site(family, systems, tables, made) for family, systems in families(plan).items()]


def _site(family: str, systems: Mapping[str, Sequence[PlannedPoint]], tables: Mapping[str, RunTable], made: Mapping[str, Path]) -> Site:
    name, _, kind = family.rpartition(" ")
    runs = {
        system: [tables[each.name] for each in points] for system, points in systems.items() if all(each.name in made for each in points)
    }
    return Site(
        name=name,
        kind=kind,
        runs={system: structs.replace(mean_of(same), name=system) for system, same in runs.items()},
        folders={system: made[systems[system][0].name] for system in runs},
        asked=frozenset(systems),
        noise=noise_of(runs.values()),
    )


# The page.


def page(about: str, sites: Sequence[Site]) -> str:
    """The text of papers.md: `about` how it was made, the headlines, all claims by what was found, and what was run."""
    judged = [judge(claim, sites) for claim in CLAIMS]
    facts = [each for site in sites if site.simulated for run in site.runs.values() for each in run.facts.values()]
    parts = [about, INTRODUCTION.format(simulator=of_facts(facts) if facts else "Nothing was simulated.")]
    parts += ["## What holds, and what does not", "**Claims by verdict**", _counts(judged), "**Ten headlines**", _headlines(judged)]
    for group in get_args(Group):
        if rows := [_row(each) for each in judged if each.group == group and not each.claim.why]:
            parts += [f"**{group.capitalize()}**", grid(("where", "claim", "their number", "here", ""), rows)]
    parts += ["## What was run", WHAT_WAS_RUN, _sites(sites)]
    return "\n\n".join(parts) + "\n"


def _counts(judged: Sequence[Judged]) -> str:
    """How many claims each group has, and how often each verdict was reached at a site of either kind."""
    groups = Counter(each.group for each in judged)
    said = ", ".join(f"{count} {group}" for group, count in groups.most_common())
    by_site = {kind: Counter(each.verdict for one in judged for each in one.found if each.site.simulated is kind) for kind in (False, True)}
    rows = [(verdict, str(by_site[False][verdict]), str(by_site[True][verdict])) for verdict in get_args(Verdict)]
    return f"Of {len(judged)} claims: {said}.\n\n" + grid(
        ("at a site", "measured", "simulated"), [row for row in rows if row[1:] != ("0", "0")]
    )


def _headlines(judged: Sequence[Judged]) -> str:
    columns = ("paper", "claim", "their number", "ours, and verdict", "operating point", "why")
    first = [each for each in judged if each.claim.why]
    return grid(columns, [(one.claim.where, one.claim.says, one.claim.theirs, _found(one), _points(one), one.claim.why) for one in first])


def _row(judged: Judged) -> tuple[str, ...]:
    claim = judged.claim
    lacks = dict.fromkeys(f"Not testable: {claim.lacks[each.site.name]}." for each in judged.found if each.verdict == "not testable here")
    return (claim.where, claim.says, claim.theirs, _found(judged) or "-", " ".join(filter(None, [*lacks, claim.note])))


def _found(judged: Judged) -> str:
    """Our number at each site, by verdict."""
    by_verdict = {verdict: [each for each in judged.found if each.verdict == verdict] for verdict in get_args(Verdict)}
    return "; ".join(
        f"**{verdict}** {', '.join(f'{_named(each.site)} {each.said}'.strip() for each in found)}"
        for verdict, found in by_verdict.items()
        if found
    )


def _named(site: Site) -> str:
    return f"sim {site.name}" if site.simulated else f"`{site.name}`"


def _points(judged: Judged) -> str:
    """The operating points, with the sites of each where there are several that were measured."""
    points: dict[str, list[Site]] = {}
    for each in judged.found:
        if each.site.runs:
            points.setdefault(each.site.point, []).append(each.site)
    measured = [point for point, sites in points.items() if not sites[0].simulated]
    names = {point: f" ({', '.join(map(_named, points[point]))})" for point in measured if len(measured) > 1}
    return "; ".join(point + names.get(point, "") for point in points)


def _sites(sites: Sequence[Site]) -> str:
    rows = [
        (_named(site), site.kind, site.point, "-" if site.noise is None else plain(site.noise), f"[{_file(site)}](papers/{_file(site)})")
        for site in sites
        if site.runs
    ]
    return grid(("site", "runs", "operating point", "noise between runs, factor", "file"), rows)


def _file(site: Site) -> str:
    return f"{site.name}-{site.kind}.csv".replace("/", "-").replace(",", "-")


def write_tables(folder: Path, sites: Iterable[Site]) -> None:
    """The figures of all runs of each site, a file each; others that are there are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.csv"):
        path.unlink()
    for site in sites:
        if site.runs:
            (folder / _file(site)).write_text(as_csv(compare(list(site.runs.values()))))


# The command.


def possible(plan: SweepPlan, only: Sequence[str]) -> Iterator[PlannedPoint]:
    """The points that can be run here: of the families `only`, if there are any, and without vLLM where that is not installed."""
    wanted = {
        each.name for family, systems in families(plan).items() if not only or family in only for same in systems.values() for each in same
    }
    vllm = find_spec("vllm") is not None
    for point in plan.points:
        if point.name in wanted and (vllm or not any(spec.backend == "vllm" for spec in point.system.engines.values())):
            yield point


def made(plan: SweepPlan, only: Sequence[str] = ()) -> SweepResult:
    """Make the runs that are missing, and let reward models score those of which rewards are asked."""
    points = list(possible(plan, only))
    observer = Observer(tell=say)
    result = whole(
        carry_out(structs.replace(plan, points=points), observer, lambda number, of, point: say(f"{number}/{of} {point.folder}"))
    )
    assert plan.study is not None
    there = {point.folder for point in result.points}
    rewards = {prm: tuple(name for name in names if name in there) for prm, names in plan.study.rewards.items()}
    if failures := score_steps(result.folder, structs.replace(plan.study, rewards=rewards), say):
        raise click.ClickException("; ".join(failures))
    return result


@click.command()
@click.option("--small", is_flag=True, help="A few problems each: print the page, keep nothing.")
@click.option("--only", multiple=True, metavar="'SITE KIND'", help="Make these runs alone, and write no page.")
def main(small: bool, only: tuple[str, ...]) -> None:
    """Make the runs that are missing and write the page."""
    with tempfile.TemporaryDirectory() if small else nullcontext(ROOT / "build/papers") as name:
        folder = Path(name)
        recording = begin(__file__) if small else go_on(__file__, folder)
        plan = planned(folder / "study", small=small)
        if unknown := set(only) - families(plan).keys():
            raise click.ClickException(f"--only {min(unknown)!r}: no such runs; there are {', '.join(families(plan))}")
        result = made(plan, only)
        if only and not small:
            return
        sites = read_sites(plan, result)
        write_tables(folder / "papers" if small else TABLES, sites)
        text = page(origin(recording.measured)[:-1], sites)
        if small:
            click.echo(text)
        else:
            runs = sorted(each.folder for each in result.points)
            recording.write(ROOT / RESULTS / "papers.json", {"bench": "papers", "runs": runs}, text)
            click.echo(f"{PAGE}: {len(runs)} runs", err=True)


if __name__ == "__main__":
    main()
