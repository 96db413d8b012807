"""Which chains are shown, and what is drawn and told of them."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from pipeline.analysis.time.work import read_work
from pipeline.reasoning.chain import Scale
from pipeline.show import transcripts
from pipeline.show.gantt import ALIVE, FAILED, QUEUED, WAITING, chains_chart
from pipeline.show.plot import Chart
from pipeline.show.problems import worth_reading
from pipeline.show.transcripts import MAX_TEXT, option_probabilities, read_transcripts, shown, step_of
from pipeline.store.query import Query
from pipeline.store.rows import StepRow
from tests.support.rows import blank
from tests.support.traces import CHOOSE, SCORE, call, chain, verdict_columns, write

pytestmark = pytest.mark.slow  # whole runs


def drawn(folder: Path, *limit: int) -> Chart:
    with Query(folder) as db:
        read_work(db)
        return chains_chart(db, ["by draft", "by verify"], *limit)


def test_chains_worth_reading_are_told_from_others_and_an_even_sample_is_drawn_by_what_its_time_was_spent_on(tmp_path: Path) -> None:
    """Four chains that ended: `b` is wrong, `c` failed, `late` was taken up again; and one that has not."""
    chains = [
        chain("b", 1, 31, correct=False, calls=2, input_row=2),
        chain("c", 2, 3, stop_reason="error", error_type="RequestRefused", calls=1, input_row=3),
        chain("a", 0, 10, correct=True, calls=2, input_row=1),
        chain("late", 20, 45, correct=True, calls=1),
    ]
    calls = [
        call("b", "draft", 1, 2, 5, queue_time_s=0.5),
        call("b", "verify", 5, 5, 6, queue_time_s=0.0),
        call("c", "draft", 2, 2, 3, error_type="RequestRefused"),
        call("a", "draft", 1, 1, 9, queue_time_s=9.0),
        call("late", "draft", 40, 40, 41),
        call("open", "draft", 40, 40, 41),
    ]
    folder = write(tmp_path / "run", chains=chains, calls=calls)
    with Query(folder) as db:
        assert [worth_reading(db, most) for most in (0, 3)] == [[], ["c", "b", "late"]]
        assert len(worth_reading(db, 30)) == 4
    chart = drawn(folder)
    [panel] = chart.panels
    assert (chart.title, chart.x.high, panel.rows) == ("All 4 chains that ended", 45.0, ["a", "b", "c", "late"])
    assert {mark.name: [(3 - y, *times) for y, *times in zip(mark.y, mark.x, mark.until, strict=True)] for mark in panel.marks} == {
        ALIVE: [(0, 0, 10), (1, 1, 31), (2, 2, 3), (3, 20, 45)],
        WAITING: [(1, 1, 2)],
        QUEUED: [(0, 1, 9), (1, 2, 2.5)],
        "by draft": [(0, 9, 9), (1, 2.5, 5), (3, 40, 41)],
        "by verify": [(1, 5, 6)],
        FAILED: [(2, 2, 3)],
    }
    sample = drawn(folder, 5)
    assert (sample.title, sample.panels[0].rows) == ("2 of 4 chains, evenly spaced by start", ["a", "c"]), "1.5 calls a chain"
    assert drawn(write(tmp_path / "empty")).panels[0].marks == []


def choice(**fields: Any) -> dict[str, Any]:
    row = blank(StepRow, **{**CHOOSE, "decision": "accepted", "score_value": 0.5, **fields})
    return asdict(row) | {"tokens": row.step_tokens}


def test_candidates_get_their_probabilities_where_the_trace_tells_them_and_repeated_ones_point_back() -> None:
    texts = {"candidate_texts": ("x", "x", "y"), "candidate_tokens": (1, 1, 2), "num_distinct_candidates": 2}
    step = step_of(choice(score_probs=(0.2, 0.5, 0.3), score_label="1", chosen_candidate=0, **texts))
    found = [(each.text, each.probability, each.chosen, each.same_as) for each in step.candidates]
    assert found == [("x", 0.5, True, None), ("", 0.5, False, 0), ("y", 0.3, False, None)]
    assert step.verdict == "choose: candidate 1 of 2, 50.0%"
    one_must_be_chosen = choice(score_probs=(0.6, 0.4), num_distinct_candidates=2)
    same_texts_of_other_tokens = choice(score_probs=(0.2, 0.5, 0.2, 0.1), num_distinct_candidates=3)
    digits_are_no_candidates = choice(**SCORE, score_probs=(0.1,) * 10, num_distinct_candidates=2)
    assert tuple(option_probabilities(one_must_be_chosen, 2)) == (0.6, 0.4)
    assert not option_probabilities(same_texts_of_other_tokens, 2)
    assert not option_probabilities(digits_are_no_candidates, 2)


BELOW = {"score_options": ("0", "1", "2"), "num_distinct_candidates": 2, "threshold": 0.8}


@pytest.mark.parametrize(
    ("judged", "fields", "expected"),
    [
        (CHOOSE, {"score_label": "5", "num_distinct_candidates": 4}, "choose: none of the candidates, 50.0%"),
        (CHOOSE, {"score_label": "0", **BELOW}, "choose: none of the candidates, 50.0% against a threshold of 0.8"),
        (CHOOSE, {"score_label": "2", **BELOW}, "choose: candidate 2 of 2, 50.0% against a threshold of 0.8"),
        (
            SCORE,
            {"score_value": 6.0, "score_label": "6", "threshold": 7.0, "score_mass": 0.5, "score_probs": [0.1] * 10},
            "score: 6 against a threshold of 7 (50.0% probability on valid options)",
        ),
        (verdict_columns("pick", Scale("value")), {"score_label": "yes", "score_value": 12.0}, "pick: yes, 12"),
        ({"verify_kind": None}, {}, None),
    ],
)
def test_what_a_verifier_said_is_told_by_its_scale(judged: dict[str, Any], fields: dict[str, Any], expected: str | None) -> None:
    assert step_of(choice(**judged, **{"chosen_candidate": None} | fields)).verdict == expected


def test_transcripts_hold_every_step_in_order_and_long_texts_and_problems_as_far_as_there_is_room(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Query(ran) as db:
        failed, *others = read_transcripts(db, worth_reading(db, 6))
        monkeypatch.setattr(transcripts, "MAX_TRANSCRIPTS", 2000)
        assert 0 < len(read_transcripts(db, worth_reading(db, 20))) < 20
    assert (failed.verdict, failed.steps) == ("failed", ())
    assert failed.ended.startswith("BadRow")
    for transcript in others:
        assert (transcript.problem or "").startswith("What is")
        assert [step.index for step in transcript.steps] == list(range(len(transcript.steps)))
        assert transcript.steps[0].decision == "guidance"
        assert {step.decision for step in transcript.steps} <= {"guidance", "accepted", "fallback"}
        assert all(sum(each.chosen for each in step.candidates) == (step.decision == "accepted") for step in transcript.steps)
    said = shown("a" * MAX_TEXT + "b" * 10)
    assert ("10 characters left out" in said, said[:3], said[-3:]) == (True, "aaa", "bbb")
