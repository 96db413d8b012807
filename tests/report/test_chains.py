"""Which chains are shown, and what is drawn and told of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from pipeline.analysis.time.work import Axis
from pipeline.reasoning.chain import Scale
from pipeline.report import transcripts as transcripts_module
from pipeline.report.chain_list import ChainList, evenly, read_chain_list, worth_reading
from pipeline.report.gantt import FAILED, QUEUED, WAITING, middle, read_gantt, sample
from pipeline.report.transcripts import MOST_TEXT, option_probabilities, read_transcripts, shown, step_of
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.run_store import RunStore
from tests.support.traces import CHOOSE, LIKELIHOOD, SCORE, verdict_columns

Blank = Callable[..., Any]
S = 1_000_000_000
T = 1_700_000_000 * S


def chain(blank: Blank, name: str, start: int, end: int, **more: Any) -> ChainRow:
    row: ChainRow = blank(
        ChainRow,
        chain_id=name,
        start_unix_ns=T + start * S,
        end_unix_ns=T + end * S,
        chain_time_s=float(end - start),
        **{"stop_reason": "thought_closed", **more},
    )
    return row


def call(blank: Blank, name: str, stage: str, submit: float, end: float, **more: Any) -> CallRow:
    row: CallRow = blank(CallRow, chain_id=name, stage=stage, submit_unix_ns=T + int(submit * S), end_unix_ns=T + int(end * S), **more)
    return row


@pytest.fixture
def folder(tmp_path: Path, blank: Blank) -> Path:
    """Four chains: `late` failed and was taken up again, `b` is wrong, `c` failed."""
    store = RunStore(tmp_path)
    store.append(
        "chains",
        [
            chain(blank, "late", 0, 2, stop_reason="error", error_type="EngineUnavailable", calls=1),
            chain(blank, "b", 1, 31, correct=False, calls=2, input_row=2),
            chain(blank, "c", 2, 3, stop_reason="error", error_type="RequestRefused", calls=1, input_row=3),
            chain(blank, "a", 0, 10, correct=True, calls=2, input_row=1),
            chain(blank, "late", 20, 25, correct=True, calls=1),
        ],
    )
    store.append(
        "calls",
        [
            call(blank, "b", "draft", 2, 5, client_wait_s=1.0, queue_time_s=0.5),
            call(blank, "b", "verify", 5, 6, client_wait_s=0.0, queue_time_s=0.0),
            call(blank, "c", "draft", 2, 3, error_type="RequestRefused"),
            call(blank, "a", "draft", 1, 9, queue_time_s=9.0),
            call(blank, "late", "draft", 40, 41),
        ],
    )
    store.close()
    return tmp_path


def test_of_a_chain_that_was_taken_up_again_the_last_row_counts(folder: Path) -> None:
    chains = read_chain_list(folder)
    assert chains.names == ["a", "b", "c", "late"]
    assert chains.correct.tolist() == [1, 0, -1, 1]
    assert chains.failed.tolist() == [False, False, True, False]


def test_worth_reading_is_what_failed_what_is_wrong_and_what_took_longest(folder: Path) -> None:
    chains = read_chain_list(folder)
    assert worth_reading(chains, 3) == {2: ("failed",), 1: ("wrong", "slowest"), 0: ("slowest",)}
    assert worth_reading(chains, 0) == {}
    assert len(worth_reading(chains, 30)) == 4


def test_all_right_leaves_all_room_to_the_slowest() -> None:
    ones = np.ones(9, int)
    chains = ChainList(
        names=[str(i) for i in range(9)],
        row=ones,
        sample=ones,
        calls=ones,
        start=ones,
        end=ones,
        seconds=np.arange(9.0),
        correct=ones,
        failed=ones == 0,
        cancelled=ones == 0,
    )
    assert list(worth_reading(chains, 6)) == [8, 7, 6, 5, 4, 3]


def test_a_sample_is_even_and_keeps_both_ends() -> None:
    assert evenly(np.arange(101), 5).tolist() == [0, 25, 50, 75, 100]
    assert evenly(np.arange(3), 5).tolist() == [0, 1, 2]


def test_spans_are_waiting_queueing_and_stages(folder: Path) -> None:
    found = read_gantt(folder, read_chain_list(folder), np.arange(4), Axis(T))
    pieces = {kind: zip(each.row.tolist(), each.start.tolist(), each.end.tolist(), strict=True) for kind, each in found.spans.items()}
    drawn = {kind: list(each) for kind, each in pieces.items()}
    assert drawn == {
        WAITING: [(1, 1, 2)],
        QUEUED: [(1, 2, 2.5), (0, 1, 9)],
        "draft": [(1, 2.5, 5), (0, 9, 9), (3, 40, 41)],
        "verify": [(1, 5, 6)],
        FAILED: [(2, 2, 3)],
    }
    assert found.alive.start.tolist() == [0, 1, 2, 20]
    assert found.alive.end.tolist() == [10, 31, 3, 25]


def test_of_too_many_chains_an_even_sample_is_drawn_and_some_that_follow_each_other(folder: Path) -> None:
    chains = read_chain_list(folder)
    assert sample(chains).tolist() == [0, 1, 2, 3]
    assert sample(chains, most_chains=2).tolist() == [0, 3]
    assert sample(chains, most_calls=3).tolist() == [0, 3], "one and a half calls a chain"
    assert middle(chains, 2).tolist() == [1, 2]
    assert middle(chains, 9).tolist() == [0, 1, 2, 3]
    found = read_gantt(folder, chains, np.array([0, 3]), Axis(T))
    assert (found.names, set(found.spans)) == (["a", "late"], {QUEUED, "draft"})


def test_no_chain_no_span(tmp_path: Path) -> None:
    chains = read_chain_list(tmp_path)
    found = read_gantt(tmp_path, chains, sample(chains), Axis(T))
    assert (found.names, found.spans) == ([], {})


def choice(blank: Blank, **fields: Any) -> dict[str, Any]:
    return asdict(blank(StepRow, **{**CHOOSE, "decision": "accepted", "score_value": 0.5, **fields}))


def test_candidates_get_their_probabilities_and_repeated_ones_point_back(blank: Blank) -> None:
    row = choice(
        blank,
        score_probs=(0.2, 0.5, 0.3),
        score_label="1",
        num_distinct_candidates=2,
        chosen_candidate=0,
        candidate_texts=("x", "x", "y"),
        candidate_tokens=(1, 1, 2),
    )
    step = step_of(row)
    assert [(each.text, each.probability, each.chosen, each.same_as) for each in step.candidates] == [
        ("x", 0.5, True, None),
        ("", 0.5, False, 0),
        ("y", 0.3, False, None),
    ]
    assert step.verdict == "choose: candidate 1 of 2, 50.0%"


@pytest.mark.parametrize(
    ("judged", "probs", "distinct", "expected"),
    [
        (CHOOSE, (0.2, 0.5, 0.3), 2, (0.5, 0.3)),
        (CHOOSE, (0.6, 0.4), 2, (0.6, 0.4)),
        (CHOOSE, (0.2, 0.5, 0.2, 0.1), 3, ()),
        (LIKELIHOOD, (0.6, 0.4), 2, (0.6, 0.4)),
        (SCORE, (0.1,) * 10, 2, ()),
    ],
    ids=["none may be said", "one must be chosen", "same texts of other tokens", "likelihood", "digits are no candidates"],
)
def test_options_are_told_only_where_the_trace_tells_them(
    blank: Blank, judged: dict[str, Any], probs: tuple[float, ...], distinct: int, expected: tuple[float, ...]
) -> None:
    row = choice(blank, **judged, score_probs=probs, num_distinct_candidates=distinct)
    assert tuple(option_probabilities(row, 2)) == expected


@pytest.mark.parametrize(
    ("judged", "fields", "expected"),
    [
        (CHOOSE, {"score_label": "0", "chosen_candidate": None, "num_distinct_candidates": 4}, "choose: none of the candidates, 50.0%"),
        (CHOOSE, {"score_label": "5", "chosen_candidate": None, "num_distinct_candidates": 4}, "choose: none of the candidates, 50.0%"),
        (
            CHOOSE,
            {"score_label": "2", "chosen_candidate": 1, "num_distinct_candidates": 4, "score_mass": 0.99, "score_probs": [0.25] * 4},
            "choose: candidate 2 of 4, 50.0%",
        ),
        (
            SCORE,
            {"score_value": 6.0, "score_label": "6", "threshold": 7.0, "score_mass": 0.5, "score_probs": [0.1] * 10},
            "score: 6 against a threshold of 7 (50.0% probability on valid options)",
        ),
        (
            LIKELIHOOD,
            {"score_value": -0.25, "threshold": -0.5, "score_mass": 0.1},
            "likelihood: -0.25 nats per token against a threshold of -0.5",
        ),
        (verdict_columns("pick", Scale("value")), {"score_label": "yes", "score_value": 12.0}, "pick: yes, 12"),
        ({"verify_kind": None}, {}, None),
    ],
)
def test_what_a_verifier_said_is_told_by_its_scale(
    blank: Blank, judged: dict[str, Any], fields: dict[str, Any], expected: str | None
) -> None:
    assert step_of(choice(blank, **judged, **fields)).verdict == expected


def test_a_long_text_loses_its_middle_and_says_so() -> None:
    said = shown("a" * MOST_TEXT + "b" * 10)
    assert "10 characters left out" in said
    assert said.startswith("aaa")
    assert said.endswith("bbb")
    assert shown("\x1b\u202e") == "\\u001b\\u202e"


def test_transcripts_hold_every_step_in_order_and_the_problem(ran: Path) -> None:
    chains = read_chain_list(ran)
    reasons = worth_reading(chains, 6)
    found = read_transcripts(ran, RunFile.read(ran), chains, reasons)
    assert [transcript.why for transcript in found.transcripts] == list(reasons.values())
    failed, *others = found.transcripts
    assert (failed.verdict, failed.steps) == ("failed", ())
    assert failed.ended.startswith("BadRow")
    for transcript in others:
        assert transcript.problem is not None
        assert transcript.problem.startswith("What is")
        assert [step.index for step in transcript.steps] == list(range(len(transcript.steps)))
        assert transcript.steps[0].decision == "guidance"
        assert {step.decision for step in transcript.steps} <= {"guidance", "accepted", "fallback"}
        assert all(sum(each.chosen for each in step.candidates) == (step.decision == "accepted") for step in transcript.steps)


def test_of_an_input_that_was_not_kept_and_has_changed_no_problem_is_shown(ran: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ran, folder)
    shutil.rmtree(folder / "problems")
    changed = tmp_path / "problems.jsonl"
    changed.write_text('{"problem": "another", "problem_id": "p0"}\n')
    setup = RunFile.read(ran)
    chains = read_chain_list(ran)
    for place in (changed, tmp_path / "gone.jsonl"):
        moved = replace(setup, options={**setup.options, "input": str(place)})
        assert [each.problem for each in read_transcripts(folder, moved, chains, {3: ("slowest",)}).transcripts] == [None]
        [kept] = read_transcripts(ran, moved, chains, {3: ("slowest",)}).transcripts
        assert kept.problem is not None


def test_transcripts_that_would_make_the_page_too_large_are_left_out(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts_module, "MOST_TRANSCRIPTS", 2000)
    chains = read_chain_list(ran)
    found = read_transcripts(ran, RunFile.read(ran), chains, worth_reading(chains, 20))
    assert found.left_out > 0
    assert len(found.transcripts) + found.left_out == 20
    assert all(transcript.steps or transcript.verdict == "failed" for transcript in found.transcripts)
