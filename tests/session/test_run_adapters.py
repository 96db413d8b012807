"""Runs in which one stage has an adapter: exactly its calls are computed with it, and the trace says so."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Engine
from pipeline.engines.torch.backend import open_torch
from pipeline.errors import GraphError, UsageError
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.prepare import load_plan
from pipeline.session.run import SessionResult, run
from tests.support.adapters import noisy, turning
from tests.support.engines import EnginesFile
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.runs import calls_of, rows, solve, solve_on

TINY = EnginesFile(ROOT / "graphs/engines/tiny.yaml", ())
SCORES = "0123456789"
LISTED = "engines.target.adapters=[selection]"
SCORED = ("temperature=0", "method=expected", "threshold=9", "max_steps=6", "repeated=0")
"""No step reaches the threshold, so that every stage of SpecReason is asked whatever the scores are."""
CHOSEN = ("temperature=0", "candidates=1", "draft_tokens=60", "token_budget=120")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The target with four adapters: `scores` turns ratings around, `choices` the options 0 and 1, `noise` changes all keys, and
    `selection` is the bundled one."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {"scores": turning(folder / "scores", SCORES), "choices": turning(folder / "choices", "01"), "noise": noisy(folder / "noise")}
    made["selection"] = "bundled:tiny-selection"
    return tuple(f"engines.target.adapters.{name}={path}" for name, path in made.items())


@pytest.fixture(scope="module")
def on_torch(portal: BlockingPortal, settings: tuple[str, ...]) -> Iterator[Mapping[str, Engine]]:
    plan = load_plan(ROOT / "graphs/speccot.yaml", TINY.path, settings)
    with portal.wrap_async_context_manager(open_torch(plan.engines)) as engines:  # type: ignore[arg-type]
        yield engines


class Solver:
    """Solves problems on engines that are open, with and without an adapter."""

    def __init__(self, portal: BlockingPortal, engines: Mapping[str, Engine], file: EnginesFile, settings: tuple[str, ...]) -> None:
        self._portal, self._engines, self._file, self._settings = portal, engines, file, settings

    def __call__(self, folder: Path, graph: str, adapter: str, *more: str) -> list[dict[str, Any]]:
        """The calls of a run."""
        chosen = (*self._file.settings, *self._settings, f"adapter={adapter}", *more)
        path, out = ROOT / f"graphs/{graph}.yaml", folder / f"{graph}-{adapter}"
        options = RunOptions(graph=path, engines=self._file.path, input=TEST_SET, limit=8, output=out, settings=chosen)
        self._portal.call(solve_on, self._engines, options)
        return calls_of(out)


def adapters_of(calls: list[dict[str, Any]]) -> dict[str, set[str | None]]:
    """The adapters of the calls of each stage."""
    return {stage: {call["adapter"] for call in calls if call["stage"] == stage} for stage in {call["stage"] for call in calls}}


def check_only_verdicts_turn(solve: Solver, folder: Path, tolerance: float) -> None:
    """SpecReason: drafts, fallbacks and answers stay as they are; every distribution over the scores is mirrored."""
    plain, turned = (solve(folder, "specreason", adapter, *SCORED) for adapter in ("null", "scores"))
    assert adapters_of(turned) == {"draft": {None}, "verify": {"scores"}, "fallback": {None}, "answer": {None}}
    assert {adapter for found in adapters_of(plain).values() for adapter in found} == {None}
    before = {call["request_id"]: call for call in plain}
    assert before.keys() == {call["request_id"] for call in turned}
    for call in turned:
        then = before[call["request_id"]]
        if call["stage"] == "verify":
            assert call["option_logprobs"] == pytest.approx(then["option_logprobs"][::-1], abs=tolerance)
            assert call["prompt_digest"] != then["prompt_digest"]
        else:
            assert (call["output_token_ids"], call["prompt_digest"]) == (then["output_token_ids"], then["prompt_digest"])


def check_the_bundled_adapter_chooses(solve: Solver, folder: Path) -> None:
    """Best of N: the target chooses with the bundled adapter and has other log probabilities then."""
    plain, adapted = (solve(folder, "best-of-n", adapter, "temperature=0", "draft_tokens=60") for adapter in ("null", "selection"))
    assert adapters_of(adapted) == {"draft": {None}, "verify": {"selection"}, "answer": {None}}
    before = {call["request_id"]: call["option_logprobs"] for call in plain}
    assert all(call["option_logprobs"] != before[call["request_id"]] for call in adapted if call["stage"] == "verify")


def check_choices_turn(solve: Solver, folder: Path) -> None:
    """SCoT: what was accepted is rejected and thought over again, and what was rejected is accepted."""
    plain, turned = (solve(folder, "scot", adapter, *CHOSEN) for adapter in ("null", "choices"))
    assert adapters_of(turned)["verify"] == {"choices"}
    assert adapters_of(turned)["answer"] == adapters_of(turned)["draft"] == {None}
    again = [{call["chain_id"] for call in calls if call["stage"] == "fallback"} for calls in (plain, turned)]
    chains = {call["chain_id"] for call in plain}
    assert again[1] == chains - again[0]
    drafts = [sorted((c["chain_id"], c["output_token_ids"]) for c in calls if c["stage"] == "draft") for calls in (plain, turned)]
    assert drafts[0] == drafts[1]


@pytest.mark.torch
def test_torch_judges_with_the_adapter_and_writes_without(
    tmp_path: Path, portal: BlockingPortal, on_torch: Mapping[str, Engine], settings: tuple[str, ...]
) -> None:
    solver = Solver(portal, on_torch, TINY, settings)
    check_only_verdicts_turn(solver, tmp_path, 1e-3)
    check_choices_turn(solver, tmp_path)
    check_the_bundled_adapter_chooses(solver, tmp_path)


def test_a_simulated_run_says_which_calls_have_the_adapter_and_shares_no_cache(tmp_path: Path) -> None:
    plain = solve(tmp_path, "plain", "specreason", settings=(LISTED,))
    adapted = solve(tmp_path, "adapted", "specreason", settings=(LISTED, "adapter=selection"))
    verified = [row for row in rows(adapted, "calls") if row["adapter"]]
    assert {(row["stage"], row["adapter"]) for row in verified} == {("verify", "selection")}
    assert len(verified) == sum(row["stage"] == "verify" for row in rows(adapted, "calls"))
    texts = [sorted((row["chain_id"], row["step_index"], row["step_text"]) for row in rows(each, "steps")) for each in (plain, adapted)]
    assert texts[0] == texts[1], "a simulated adapter changes no text"

    def cached(result: SessionResult, adapter: str | None) -> int:
        return sum(row["cached_input_tokens"] for row in rows(result, "calls") if row["engine"] == "target" and row["adapter"] == adapter)

    assert cached(plain, None) > cached(adapted, None) + cached(adapted, "selection") > 0
    assert sum(row["recomputed_input_tokens"] for row in rows(adapted, "calls")) == 0, "nothing was evicted"


def test_a_replay_answers_what_was_asked_of_the_same_adapter(tmp_path: Path) -> None:
    recorded = solve(tmp_path, settings=(LISTED, "adapter=selection"))

    def replayed(adapter: str) -> SessionResult:
        given = RunOptions(
            graph=ROOT / "graphs/speccot.yaml",
            engines=Path(f"replay:{recorded.folder}"),
            input=tmp_path / "problems.jsonl",
            output=tmp_path / f"replay-{adapter}",
            settings=(f"adapter={adapter}",),
        )
        return run(given)

    same, other = replayed("selection"), replayed("null")
    assert (same.done, same.failed) == (recorded.done, 0)
    assert {row["adapter"] for row in rows(same, "calls")} == {None, "selection"}
    assert other.done == 0
    assert {row["error_stage"] for row in rows(other, "chains")} == {"verify"}
    assert "another wording or adapter" in rows(other, "chains")[0]["error_message"]


def test_a_run_goes_on_with_its_adapters_alone(tmp_path: Path) -> None:
    result = solve(tmp_path, settings=(LISTED, "adapter=selection"))
    assert result.folder is not None
    assert run(resume_options(result.folder)).nothing_to_do
    wider = (LISTED.replace("]", ", other]"), "adapter=selection")
    with pytest.raises(UsageError, match=r"engines\.target\.adapters is \('selection', 'other'\), was \('selection',\)"):
        solve(tmp_path, settings=wider, resume=True)
    assert solve(tmp_path, settings=wider, resume=True, allow_drift=("engines",)).nothing_to_do
    with pytest.raises(UsageError, match="param adapter is None, was selection"):
        solve(tmp_path, settings=(LISTED,), resume=True)


@pytest.mark.parametrize(
    ("graph", "given", "what"),
    [
        (
            "scot",
            ("adapter=selection",),
            r"stages\.verify\.adapter: the engine `target` has no adapter named `selection`; its engines file lists none",
        ),
        (
            "specreason",
            (LISTED, "adapter=other"),
            r"stages\.verify\.adapter: the engine `target` has no adapter named `other`; it has `selection`$",
        ),
        ("speccot", (LISTED, "stages.draft.adapter=selection"), "the engine `draft` has no adapter named `selection`"),
        ("speccot", (LISTED, "stages.reason.adapter=selection"), r"\.reason\.adapter: a `repeat` calls no engine; set the adapter on"),
        ("speccot", (LISTED, "adapter=3"), r"--set adapter=3: expected `str \| null`, got `int`"),
        ("speccot", ("engines.target.adapters=['']",), r"adapters\[0\]: expected `str` of length >= 1"),
    ],
)
def test_a_stage_names_an_adapter_of_its_engine(graph: str, given: tuple[str, ...], what: str) -> None:
    with pytest.raises(GraphError, match=what):
        load_plan(ROOT / f"graphs/{graph}.yaml", SIM, given)
