"""Several tasks at once: results in order, one error in place of a group."""

from functools import partial

import anyio
import pytest

from pipeline.errors import EngineDead, PipelineError, RequestRefused, RunError
from pipeline.tasks import gather, unwrapped


async def after(seconds: float, result: int | Exception) -> int:
    await anyio.sleep(seconds)
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.anyio
async def test_results_come_in_the_order_of_the_jobs() -> None:
    assert await gather([partial(after, 3, 1), partial(after, 1, 2), partial(after, 2, 3)]) == [1, 2, 3]
    assert anyio.current_time() == 3
    assert await gather([]) == []


@pytest.mark.anyio
async def test_the_first_error_of_ours_ends_the_others_and_comes_alone() -> None:
    with pytest.raises(EngineDead):
        await gather([partial(after, 9, 1), partial(after, 1, EngineDead("draft", "gone"))])
    assert anyio.current_time() == 1


def test_errors_are_looked_for_in_the_order_of_the_kinds() -> None:
    refused, dead = RequestRefused("no"), EngineDead("draft", "gone")
    with pytest.raises(EngineDead), unwrapped(RunError, PipelineError):
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [refused]), dead])
    with pytest.raises(RequestRefused), unwrapped():
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [refused]), dead])


def test_what_is_not_ours_stays_in_its_group_and_a_cause_is_kept() -> None:
    with pytest.raises(ExceptionGroup), unwrapped():
        raise ExceptionGroup("", [ValueError()])
    dead = EngineDead("draft", "gone")
    dead.__cause__ = OSError("why")
    with pytest.raises(EngineDead) as raised, unwrapped():
        raise ExceptionGroup("", [dead])
    assert isinstance(raised.value.__cause__, OSError)
