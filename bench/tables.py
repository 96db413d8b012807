"""Measured figures as Markdown: one function for each script of this folder, from what its results file holds.

Sentences that name a figure stand here too, so that no figure of the docs is typed in.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import scaling_page
from grids import Results, grid, percent

from pipeline.analysis.simulated import sentence, stated


def bundled_run(results: Results) -> str:
    return "\n".join(["```", *(f"  {line}" for line in results["printed"]), "```"])


def memory(results: Results) -> str:
    during = ("while checking the input", "while solving", "while summing up")
    columns = ("graph", "problems", "peak MiB", *during, "CPU us a problem", "wall s")
    rows = []
    for row in results["results"]:
        sizes = (f"{size:.0f}" for size in (row["peak_mib"], *(row["most_mib"][phase] for phase in ("check", "solve", "sum up"))))
        rows.append((row["graph"], f"{row['rows']:,}", *sizes, f"{row['cpu_us_per_problem']:,.0f}", f"{row['wall_s']:.0f}"))
    return grid(columns, rows)


def report(results: Results) -> str:
    columns = ("calls", "seconds", "CPU s", "peak MiB", "file MB", "page loaded s", "chains painted s", "a chain opened s")
    timed = ("load_s", "chains_painted_s", "chain_open_s")
    rows = []
    for row in results["results"]:
        spent = (f"{row['report_s']:.1f}", f"{row['cpu_s']:.1f}", f"{row['peak_mib']:.0f}", f"{row['file_mb']:.1f}")
        rows.append((f"{row['calls']:,}", *spent, *(f"{row[name]:.1f}" if name in row else "-" for name in timed)))
    return grid(columns, rows)


def analysis(results: Results) -> str:
    rows = [(row["system"], f"{row['work_s']:.1f}", f"{row['cpu_s']:.1f}", f"{row['peak_mib']:,.0f}") for row in results["results"]]
    loads = [each["load"] for row in results["results"] for each in row["runs"]]
    repeats = len(results["results"][0]["runs"])
    return (
        f"{results['calls']:,} calls, {results['bytes'] / 2**20:,.0f} MiB; medians of {repeats} processes each, in turns, "
        f"load {min(loads):.1f} to {max(loads):.1f}, their own included. Compiling takes another "
        f"{results['compile_cpu_s']:.0f} s of CPU time, once.\n\n" + grid(("", "seconds", "CPU s", "peak MiB"), rows)
    )


def schedules(results: Results) -> str:
    runs = max(row["runs"] for row in results["results"])
    about = f"{results['engines']}, {results['problems']} problems, medians of up to {runs} interleaved runs"
    about += "; **simulated** times" if results["simulated"] else ""
    columns = ("batch", "system", "wall s", "/ pipelined", "/ limit", "cpu s", "accuracy", "same", "busy target, draft")
    order = ("pipelined", "lockstep", "sequential", "target-alone")
    rows = []
    for row in sorted(results["results"], key=lambda row: (row["batch_size"], order.index(row["system"]))):
        # On simulated machines the engines share a device, and the replay of the limit has it to itself.
        limit = f"{row['over_limit']:.2f}" if row["over_limit"] and not results["simulated"] else ""
        busy = ", ".join(percent(row["busy"][role], 0) for role in ("target", "draft") if role in row["busy"])
        same = "" if row["same_answers"] is None else percent(row["same_answers"], 0)
        times = (f"{row['wall_s']:.2f}", f"{row['over_pipelined']:.2f}", limit, f"{row['orchestrator_cpu_s']:.2f}")
        rows.append((str(row["batch_size"]), row["system"], *times, percent(row["accuracy"]), same, busy))
    return f"{about}\n\n{grid(columns, rows)}"


def vllm_engine(results: Results) -> str:
    ratios = results["ratios"]
    by_round = f"{' '.join(f'{ratio:.2f}' for ratio in ratios)}, median **{statistics.median(ratios):.2f}**"
    rates = results["requests_per_s"]
    rows = [("engine `vllm`", f"{rates['engine']:.1f}", by_round), ("bare loop", f"{rates['bare']:.1f}", "")]
    columns = ("", "requests/s, median", f"engine over bare, by round of {results['requests_per_round']} requests")
    return grid(columns, rows)


def accuracy(results: Results) -> str:
    rows = []
    for row in results["results"]:
        seeds = " ".join(f"{100 * each:.1f}" for each in row["accuracies"])
        tokens = ", ".join(f"{role} {count:,}" for role, count in sorted(row["output_tokens"].items()))
        rows.append((row["graph"], percent(row["accuracy"]), seeds, percent(row["fallback_rate"]), percent(row["draft_share"]), tokens))
    return grid(("graph", "accuracy", "by seed", "fallback", "thought in accepted candidates", "output tokens a run"), rows)


def study(results: Results) -> str:
    rows = [
        (name, f"{row['wall_s']:,.0f}", f"{row['cpu_s']:,.0f}", f"{row['peak_mib']:.0f}", f"{row['load']:.1f}")
        for name, row in (("run", results["run"]), ("report", results["report"]))
    ]
    work = f"{results['problems']:,} chains of {results['graph']} on {results['engines']}, batch size {results['batch_size']}"
    made = f"{results['calls']:,} calls, {results['simulated_s'] / 3600:.1f} simulated hours, {results['parquet_bytes'] / 2**20:,.0f} MiB"
    cost = f"{1e3 * results['run']['cpu_s'] / results['problems']:.0f} ms of CPU a chain"
    table = grid(("", "wall s", "CPU s", "peak MiB", "load"), rows)
    return f"**Simulated**: {work}; {made}; {cost}\n\n{table}"


def scaling(results: Results) -> str:
    return "\n".join([*scaling_page.verdict(results), "", stated(())])


def calibration(results: Results) -> str:
    return sentence(results["median_error"], results["own_text_error"])


def replicas(results: Results) -> str:
    columns = ("bad replica", "of", "failed chains", "attempts without an answer", "wall s", "healthy ones alone", "rate")
    rows = []
    for run in results["runs"]:
        walls = (f"{run[kind]['wall_s']:.1f}" for kind in ("bad", "healthy"))
        unanswered = f"{run['unanswered']} of {run['bad']['attempts']}"
        rows.append((run["way"], str(run["replicas"]), str(run["failed"]), unanswered, *walls, f"{run['rate']:.2f}"))
    return grid(columns, rows)


def cluster(results: Results) -> str:
    return _CLUSTER[results["part"]](results)


def _cluster_linear(results: Results) -> str:
    by_count: dict[int, list[Results]] = {}
    for row in results["results"]:
        by_count.setdefault(row["replicas"], []).append(row)

    def rate(row: Results) -> float:
        return float(row["problems"] / row["wall_s"])

    one = statistics.median(rate(row) for row in by_count[1])
    rows = []
    for count, runs in sorted(by_count.items()):
        rates, cpu = [rate(row) for row in runs], statistics.median(1e3 * row["driver_cpu_s"] / row["problems"] for row in runs)
        each = statistics.median(1e6 * row["driver_cpu_s"] / row["calls"] for row in runs)
        share = statistics.median(rates) / one / count
        speed = f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"
        rows.append((str(count), f"{runs[0]['problems']:,}", speed, f"{share:.3f}", f"{cpu:.2f}", f"{each:.0f}"))
    columns = ("replicas", "problems", "problems/s, median", "of linear", "driver's CPU, ms a problem", "us a call")
    about = f"Batch size {results['batch_size']} a replica, {1e3 * results['iteration_s']:.0f} ms an iteration.\n\n"
    return about + grid(columns, rows)


def _cluster_tolls(results: Results) -> str:
    columns = ("fault", "faults", "chains", "lost", "doubled", "torn", "changed", "failed", "wrong ends")
    rows = [
        (toll["fault"], *(f"{toll[name]:,}" for name in ("faults", "chains", "lost", "doubled", "torn", "changed", "failed", "wrong_ends")))
        for toll in results["tolls"]
    ]
    about = f"{results['problems']} problems a run. "
    if "garbage_share" in results:
        share = percent(results["garbage_share"], 0)
        about += f"With garbage, {share} of the attempts get it, and calls are tried again. "
        about += f"A replica counts as hanging after {results['silent_s']:g} s."
    return f"{about.strip()}\n\n{grid(columns, rows)}"


def _cluster_million(results: Results) -> str:
    cost = f"{1e6 * results['driver_cpu_s'] / results['problems']:.0f} us of the driver's CPU a problem"
    text = f"{results['problems']:,} problems through {results['replicas']} replicas in {results['wall_s']:,.0f} s, {cost}"
    shares = sorted(results["solving_mib"].items())
    return f"{text}; peak {results['peak_mib']:.0f} MiB.\n\n" + grid(
        ("chains done, tenths", *(share for share, _ in shares)), [("driver's memory, MiB", *(f"{mib:.0f}" for _, mib in shares))]
    )


def _cluster_data(results: Results) -> str:
    rows = []
    for batch in sorted({row["batch"] for row in results["results"]}):
        pairs = [
            [row["wall_s"] for row in results["results"] if (row["kind"], row["batch"]) == (kind, batch)] for kind in ("Solver", "bare")
        ]
        ratios = [bare / solver for solver, bare in zip(*pairs, strict=True)]
        walls = (f"{statistics.median(walls):.1f}" for walls in pairs)
        by_round = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append((str(batch), *walls, f"{by_round}, median **{statistics.median(ratios):.2f}**"))
    about = f"{results['problems']} problems, {results['in_flight']} chains in flight an actor at most.\n\n"
    return about + grid(("rows a batch", "`Solver`, s", "batch after batch, s", "times as fast, by round"), rows)


_CLUSTER: dict[str, Callable[[Results], str]] = {
    "linear": _cluster_linear,
    "faults": _cluster_tolls,
    "torch": _cluster_tolls,
    "million": _cluster_million,
    "data": _cluster_data,
}


def cluster_sim(results: Results) -> str:
    runs = results["results"]
    kinds = {kind: [run for run in runs if run["kind"] == kind] for kind in ("scale", "rate", "strong", "fail", "tail")}
    wrong = sum(bool(run["lost"] or run["doubled"] or run["failed"] or run["flaws"]) for run in runs)
    checked = f"{len(runs)} runs; in {wrong} of them a chain was lost, doubled or failed, or rows were inconsistent."
    parts = (checked, _scaled(kinds["scale"], kinds["rate"]), _strong(kinds["strong"]), _failing(kinds["fail"], kinds["scale"]))
    return "\n\n".join((*parts, _tails(kinds["tail"])))


def _rate(runs: Iterable[Results]) -> float:
    """Problems a second of runs together."""
    runs = list(runs)
    return sum(run["replicas"] * run["per_replica"] for run in runs) / sum(run["makespan_s"] for run in runs)


def _full_rate(runs: Iterable[Results]) -> float:
    """Tokens a second of each replica while chains waited."""
    runs = list(runs)
    return sum(run["full_tokens"] for run in runs) / sum((run["makespan_s"] - run["tail_s"]) * run["replicas"] for run in runs)


def _grouped(runs: Iterable[Results], *names: str) -> dict[tuple[Any, ...], list[Results]]:
    found: dict[tuple[Any, ...], list[Results]] = {}
    for run in runs:
        found.setdefault(tuple(run[name] for name in names), []).append(run)
    return found


def _driver_s(run: Results) -> tuple[float, float]:
    """CPU seconds of the driver for chains and for rows; of what the event loop spends between tasks it has its share."""
    cpu = run["cpu"]
    tasks = sum(spent for whose, spent in cpu.items() if whose != "loop")
    share = 1 + cpu.get("loop", 0.0) / tasks
    return cpu["handing"] * share, cpu["writing"] * share


def _scaled(runs: Sequence[Results], wide: Sequence[Results]) -> str:
    groups, rows = _grouped(runs, "lengths", "per_replica", "replicas"), []
    for (lengths, per_replica, count), here in groups.items():
        alone = groups[lengths, per_replica, 1]
        problems, driver = sum(run["replicas"] * run["per_replica"] for run in here), [_driver_s(run) for run in here]
        seconds = sum(run["makespan_s"] for run in here)
        grown = statistics.mean(run["grown_mib"] for run in here) * 1024 / count / here[0]["batch_size"]
        rows.append(
            (
                f"{count:,}",
                f"{per_replica} {lengths}",
                f"{_rate(here):.2f}",
                percent(_rate(here) / count / _rate(alone)),
                percent(_full_rate(here) / _full_rate(alone)),
                percent(sum(run["tail_s"] for run in here) / seconds, 0),
                percent(sum(run["longest_chain_s"] for run in here) / seconds, 0),
                ", ".join(f"{1e3 * sum(part) / problems:.1f}" for part in zip(*driver, strict=True)),
                f"{1e3 * sum(run['cpu_s'] for run in here) / problems:.1f}",
                f"{sum(map(sum, driver)) / seconds:.2f}",
                f"{max(run['peak_mib'] for run in here):,.0f}",
                f"{grown:,.0f}",
            )
        )
    columns = (
        *("replicas", "problems a replica", "problems/s", "of perfect", "of perfect before the tail", "tail", "longest chain"),
        *("driver's CPU ms a problem: chains, rows", "process", "driver's cores", "peak MiB", "KiB a chain in flight"),
    )
    big = max(runs, key=lambda run: run["replicas"] * run["per_replica"])
    rate = _rate(wide)
    costs = [sum(_driver_s(run)) / (run["replicas"] * run["per_replica"]) for run in (big, wide[0])]
    (ms, most), (wide_ms, wide_most) = ((f"{1e3 * cost:.1f} ms", f"{1 / cost / rate:,.0f}") for cost in costs)
    return grid(columns, rows) + (
        f"\n\nAt batch size {wide[0]['batch_size']} one such replica solves {rate:.2f} problems/s. One core of a driver is busy with "
        f"{most} such replicas at the {ms} a problem of the largest run above, and with {wide_most} at the {wide_ms} of a run at "
        "this batch size, whose reports hold more rows each."
    )


def _strong(runs: Sequence[Results]) -> str:
    first = runs[0]
    rows = []
    for run in runs:
        speedup = first["makespan_s"] / run["makespan_s"]
        shares = (percent(run[name] / run["makespan_s"], 0) for name in ("tail_s", "longest_chain_s"))
        perfect = percent(speedup * first["replicas"] / run["replicas"])
        rows.append((str(run["replicas"]), f"{run['makespan_s']:.0f}", f"{speedup:.2f}", perfect, *shares))
    columns = ("replicas", "makespan s", f"times {first['replicas']} replicas", "of perfect", "tail", "longest chain")
    return f"The same {first['replicas'] * first['per_replica']:,} problems:\n\n{grid(columns, rows)}"


def _failing(runs: Sequence[Results], calm: Sequence[Results]) -> str:
    rows = []
    for run in runs:
        same = next(each for each in calm if all(each[name] == run[name] for name in ("replicas", "per_replica", "lengths", "seed")))
        rows.append(
            (
                str(run["replicas"]),
                f"{run['nodes']['failure_s'] / 60:g} min",
                str(run["deaths"]),
                percent(same["makespan_s"] / run["makespan_s"]),
                percent(run["computed_tokens"] / run["tokens"] - 1, 2),
                percent(run["computed_calls"] / same["computed_calls"] - 1, 2),
                f"{run['lost']}, {run['doubled']}",
                str(run["dropped"]),
            )
        )
    columns = (
        *("replicas", "a node fails every", "failures", "throughput of that without"),
        *("tokens computed and not recorded", "more calls", "chains lost, doubled", "replicas dropped"),
    )
    return grid(columns, rows)


ORDERS = {"input": "of the input", "longest": "longest text", "earlier": "longest in an earlier run"}


def _tails(runs: Sequence[Results]) -> str:
    groups = _grouped([run | {"slow": run["nodes"]["slow"]} for run in runs], "replicas", "order", "slow")
    rows = []
    for count, order in _grouped(runs, "replicas", "order"):
        row = [str(count), ORDERS[order]]
        for slow in (0, 1):
            chosen, base = groups[count, order, slow], groups[count, "input", slow]
            ratios = [one["makespan_s"] / other["makespan_s"] for one, other in zip(chosen, base, strict=True)]
            seconds = sum(run["makespan_s"] for run in chosen)
            tail = percent(sum(run["tail_s"] for run in chosen) / seconds, 0)
            row.append(f"{seconds / len(chosen):.0f} s ({min(ratios):.2f} to {max(ratios):.2f}), tail {tail}")
        rows.append(row)
    columns = ("replicas", "order", "all alike", "one slow node")
    return grid(columns, rows)


TABLES: dict[str, Callable[[Results], str]] = {
    table.__name__: table
    for table in (
        bundled_run,
        memory,
        report,
        analysis,
        schedules,
        vllm_engine,
        accuracy,
        study,
        scaling,
        calibration,
        replicas,
        cluster,
        cluster_sim,
    )
}
"""By the names of the scripts; those that write a page of their own have none here."""
