"""Problems in memory: data frames, and values that a file would give in another way or not at all."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from msgspec import structs

from pipeline.data.in_memory import ProblemList, is_frame, rows_of
from pipeline.data.part import ALL
from pipeline.data.problems import Problem
from pipeline.data.requests.chat import ChainSettings
from pipeline.errors import BadRow, InputError
from pipeline.graph.prompts import Message
from tests.support.requests import request

COLUMNS = {"problem": ["1+1?", "2+2?"], "answer": [np.float32(0.3), np.float32(4)]}


class Frame:
    """A table of a library that is not here."""

    columns = ("problem", "answer")

    def to_dict(self) -> dict[str, list[Any]]:
        return COLUMNS


class Streamed:
    """One with the Arrow C stream interface alone."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)


FRAMES = [pd.DataFrame(COLUMNS), pd.DataFrame(COLUMNS, dtype=object), pa.table(COLUMNS), pa.table(COLUMNS).to_reader(), Frame(), Streamed()]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_data_frame_gives_the_problems_of_its_rows(frame: Any) -> None:
    assert is_frame(frame)
    assert list(ProblemList(rows_of(frame), {}, ALL)) == [Problem(1, "1", "1+1?", "0.3"), Problem(2, "2", "2+2?", "4")]


def test_requests_and_chats_given_as_values_keep_what_they_say() -> None:
    chat = Problem(1, "a", "2+2?", None, history=(Message("user", "1+1?"), Message("assistant", "2")))
    asked = Problem(1, "b", "2+2?", None, settings=ChainSettings(max_tokens=9))
    assert list(ProblemList([chat, request("b", max_tokens=9)], {}, ALL)) == [chat, structs.replace(asked, row=2)]
    with pytest.raises(InputError, match="problems, item 1: has settings of its own, which only a request can say"):
        ProblemList([asked], {}, ALL)


@pytest.mark.parametrize("other", [[], {}, iter([]), "text", 5, None])
def test_what_is_no_data_frame(other: object) -> None:
    assert not is_frame(other)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (np.float16(0.1), "0.1"),
        (np.array([0.1, 0.2], np.float32), "0.1, 0.2"),
        (Decimal("27.00"), "27"),
        (1e22, "1" + 22 * "0"),
        (float("nan"), None),
        (b"ab", "ab"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (pd.Timestamp("2024-01-02"), "2024-01-02T00:00:00"),
        (np.int64(3), "3"),
    ],
)
def test_a_value_means_what_it_would_mean_in_a_file(value: Any, answer: str | None) -> None:
    [item] = ProblemList([{"problem": "x", "answer": value, "other": object()}], {}, ALL)
    assert isinstance(item, Problem)
    assert item.answer == answer


@pytest.mark.torch
def test_numbers_of_torch_have_the_digits_of_their_width() -> None:
    import torch

    rows = [{"problem": "x", "answer": torch.tensor(0.3, dtype=kind)} for kind in (torch.bfloat16, torch.float16, torch.float32)]
    assert [item.answer for item in ProblemList(rows, {}, ALL) if isinstance(item, Problem)] == ["0.3"] * 3


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"problem": "a\ud800"}, "contains a lone surrogate, which is not a character"),
        ({"problem": "a", "answer": float("inf")}, "`answer` is infinite, expected text or a number"),
        ({"problem": "a", "answer": b"\xff"}, "`answer` is binary, expected text or a number"),
        ({"problem": "a", "answer": 1j}, "cannot be written as JSON: a value is of type `complex`"),
    ],
)
def test_a_row_that_holds_no_problem_spoils_no_other(row: dict[str, Any], what: str) -> None:
    problems = ProblemList([{"problem": "x", "note": "\ud800"}, row], {}, ALL)
    good, bad = problems
    assert isinstance(bad, BadRow)
    assert bad.what == what
    assert good == Problem(1, "1", "x", None)
    assert problems.check().bad_rows == 1
