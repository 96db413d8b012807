"""One session of a run on the replicas of a cluster: a run that is ready enters, its result leaves, as of `pipeline.session.run.solve`."""

import time

from msgspec import structs

from pipeline.cluster.fleet import Fleet
from pipeline.cluster.keeper import Launcher, kept
from pipeline.session.checks.replicas import check_replicas
from pipeline.session.execute import SessionResult, begin, execute
from pipeline.session.observer import Attend, Observer
from pipeline.session.ready import Ready, announced
from pipeline.session.run import attended
from pipeline.session.stop import Stop


async def solve_on_replicas(
    launch: Launcher, ready: Ready, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None, balanced: bool = True
) -> SessionResult:
    """Start the replicas by `launch` and solve on them. Raises what keeps any chain from starting.

    `balanced`: chains may move between replicas at the end of the run.
    """

    check_replicas(ready.checked.options)

    async def on_replicas(stop: Stop) -> SessionResult:
        opening = time.monotonic()
        with announced(ready):
            async with kept(ready.checked.options.replicas, launch, observer.tell) as keeper:
                opened = await keeper.wait_open()
                run = begin(ready, opened.facts, time.monotonic() - opening)
                result = await execute(run, Fleet(keeper, balanced=balanced), observer, stop)
                return structs.replace(result, notices=opened.notices)

    return await attended(on_replicas, stop or Stop(), attend)
