"""Continuous batching of one simulated engine, in device work instead of time, and in stretches instead of iterations.

Jobs enter; they leave finished, with the moments at which they were scheduled, had their first token and ended. Between
two decisions the batch is constant and its keys and values grow linearly, so the engine's future up to the next
decision is a *course*: a few stretches of equal iterations with closed-form durations. Plain synchronous code: no
clock, no task. Work is measured in the seconds that it would take on a device of one's own.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from pipeline.engines.sim.cache import PrefixCache
from pipeline.engines.sim.segment import Cost, Job, Stretch
from pipeline.engines.sim.spec import SimSpec

Key = tuple[int, float, str, int]
"""Of a job, by which jobs are ordered: priority, arrival, request id, number."""
OLDEST_EVERY = 8
"""One admission in so many goes to the oldest job, whatever its priority, so that none waits for ever."""


class Finish(NamedTuple):
    """A sequence will have its last token after `iteration`, with `context` tokens of keys and values to read."""

    iteration: int
    key: Key
    candidate: int
    context: int
    job: Job


class Scheduler:
    """The queue, the batch and the course of one engine."""

    def __init__(self, spec: SimSpec) -> None:
        self.cost, self.cache = Cost(spec), PrefixCache(spec.kv_cache_tokens)
        self.max_seqs, self.max_tokens = spec.max_num_seqs, spec.max_num_batched_tokens
        self.work = 0.0
        """Device work at the boundary that `size` and `context` describe."""
        self.running = self.waiting = 0
        self.course: deque[Stretch] = deque()
        self.size = 0
        """Sequences that decode."""
        self._context = 0
        """Tokens that they read in the next iteration."""
        self._iteration = 0
        self._queue: list[tuple[Key, Job]] = []
        self._ages: list[tuple[Key, Job]] = []
        """The queue once more, as if all had one priority; a job that was let in from the one still stands in the other."""
        self._admissions = 0
        self._partial: Job | None = None
        """The job whose prompt is computed in part; there is never a second one."""
        self._finishes: list[Finish] = []
        self._deliveries: list[tuple[int, Key, Job]] = []
        self._dropped = False

    @property
    def end(self) -> float:
        """Device work at which the course ends, infinite where there is none."""
        return self.course[-1].end if self.course else math.inf

    @property
    def undecided(self) -> bool:
        """May the next iteration hold anything but the sequences that decode already?"""
        return bool(self._dropped or self._partial or self.waiting)

    @property
    def decoding_only(self) -> bool:
        return not self.course[0].chunks

    def delivers(self) -> bool:
        """Does a job finish at the end of the course?"""
        left = self._deliveries[0][0] - self._iteration if self._deliveries else math.inf
        for stretch in self.course:
            left -= stretch.iterations
        return left <= 0

    def add(self, job: Job) -> bool:
        """Queue `job`; returns whether the next iteration may have to be decided anew for it."""
        heappush(self._queue, (job.key, job))
        heappush(self._ages, ((0, *job.key[1:]), job))
        self.waiting += 1
        return self._head() is job

    def drop(self, job: Job) -> bool:
        """Forget `job`; returns whether the next iteration has to be decided anew for it."""
        if job.node is None:
            head = self._head()
            job.queued, job.cancelled = False, True
            self.waiting -= 1
            return head is job
        job.cancelled = self._dropped = True
        return True

    def decide(self, now: float) -> None:
        """Settle what the next iterations compute, at a boundary that is reached at time `now`."""
        self._purge()
        chunks = self._prompts(now)
        self._chart(chunks)

    def catch_up(self, work: float, time: Callable[[float], float]) -> None:
        """Pass the stretches that end by `work`, but for the course's last; `time` says when each ended."""
        while len(self.course) > 1 and self.course[0].end <= work:
            stretch = self.course.popleft()
            self._pass(stretch, time(stretch.end))

    def finish(self, time: Callable[[float], float]) -> list[Job]:
        """Pass the rest of the course; returns the jobs that finish there."""
        self.catch_up(self.end, time)
        stretch = self.course.popleft()
        return self._pass(stretch, time(stretch.end))

    def interrupt(self, work: float) -> bool:
        """Let the iteration that is under way at `work` be the last of the course; False if none is, and a decision is due."""
        stretch = self.course[0]
        self.course.clear()
        if work <= stretch.start and not stretch.chunks:
            return False
        self.course.append(stretch.cut(work))
        return True

    def reopen(self) -> None:
        """Take the course back before its first iteration."""
        self.course.clear()

    def _head(self) -> Job | None:
        """Who is let in next: by priority, every so often by age; nobody passes it while it waits for seats or room."""
        if not self.waiting:
            return None
        for queue in (self._queue, self._ages):
            while queue and not queue[0][1].queued:
                heappop(queue)
        oldest = self._admissions % OLDEST_EVERY == OLDEST_EVERY - 1
        return self._ages[0][1] if oldest else self._queue[0][1]

    def _prompts(self, now: float) -> list[tuple[Job, int]]:
        """Prompt tokens for the next iteration: first the prompt that is under way, then what waits and fits."""
        budget = self.max_tokens - self.size
        seats = self.size
        chunks: list[tuple[Job, int]] = []
        while budget > 0:
            job = self._partial or self._admitted(seats, now)
            if job is None:
                break
            left = len(job.prompt) - job.cached - job.computed
            tokens = min(left, budget)
            chunks.append((job, tokens))
            budget -= tokens
            seats += job.seats
            self._partial = job if tokens < left else None
        return chunks

    def _admitted(self, seats: int, now: float) -> Job | None:
        """The next of the queue, if there are seats and room for it."""
        job = self._head()
        if job is None or seats + job.seats > self.max_seqs:
            return None
        job.node, job.cached = self.cache.match(job.prompt, job.reusable)
        reserved = job.need - job.cached
        if not self.cache.reserve(reserved):
            self.cache.unpin(job.node)
            job.node = None
            return None
        self.waiting -= 1
        self.running += 1
        self._admissions += 1
        job.queued, job.reserved, job.scheduled = False, reserved, max(now, job.arrived)
        return job

    def _chart(self, chunks: list[tuple[Job, int]]) -> None:
        """Lay out the course up to the next decision."""
        at, size, context, iteration = self.work, self.size, self._context, self._iteration
        if chunks:
            tokens = sum(count for _, count in chunks)
            reads = sum(job.cached + job.computed + count for job, count in chunks)
            self.course.append(self.cost.load(size + tokens, context + reads, 0).stretch(at, 1, tuple(chunks)))
            at, context, iteration = self.end, context + size, iteration + 1
            for job, count in chunks:
                if job.cached + job.computed + count == len(job.prompt):
                    self._expect(job)
                    size, context = size + job.seats, context + job.seats * (len(job.prompt) + 1)
        # A prompt that is done may free seats and room, so whoever waits is asked again right after it.
        if size and self._partial is None and not (chunks and self.waiting):
            self._chart_decoding(at, size, context, iteration)

    def _expect(self, job: Job) -> None:
        """Note when the sequences of `job` end; the next iteration gives their first tokens."""
        for candidate, length in enumerate(job.lengths):
            insort(self._finishes, Finish(self._iteration + length, job.key, candidate, len(job.prompt) + length, job))
        heappush(self._deliveries, (self._iteration + max(job.lengths), job.key, job))

    def _chart_decoding(self, at: float, size: int, context: int, iteration: int) -> None:
        """Lay out decode stretches to the next delivery or, while something waits for a seat, to the next finish."""
        while self._deliveries[0][2].cancelled:
            heappop(self._deliveries)
        horizon = self._finishes[0].iteration if self.waiting else self._deliveries[0][0]
        for finish in self._finishes:
            if finish.iteration > horizon:
                break
            if finish.iteration > iteration:
                count = finish.iteration - iteration
                self.course.append(self.cost.load(size, context, size).stretch(at, count))
                at, context, iteration = self.end, context + count * size, finish.iteration
            size, context = size - 1, context - finish.context

    def _pass(self, stretch: Stretch, now: float) -> list[Job]:
        """Bring batch and cache to the end of `stretch`; returns the jobs that finish there."""
        self.work = stretch.end
        self._iteration += stretch.iterations
        self._context += stretch.iterations * self.size
        for job, tokens in stretch.chunks:
            job.computed += tokens
            if job.cached + job.computed == len(job.prompt):
                self._join(job, now)
        finished = []
        done = 0
        for finish in self._finishes:
            if finish.iteration > self._iteration:
                break
            done += 1
            self.size -= 1
            self._context -= finish.context
            finish.job.remaining -= 1
            if not finish.job.remaining:
                self._deliver(finish.job, now)
                finished.append(finish.job)
        del self._finishes[:done]
        return finished

    def _join(self, job: Job, now: float) -> None:
        """The whole prompt is computed: others may reuse it, and the sequences of `job` decode from here on."""
        assert job.node is not None
        job.first_token = now
        self.size += job.seats
        self._context += job.seats * (len(job.prompt) + 1)
        job.node = self.cache.extend(job.node, job.prompt[job.cached :])
        self._release(job, job.reserved - sum(job.lengths))

    def _deliver(self, job: Job, now: float) -> None:
        assert job.node is not None
        job.finished = now
        self._release(job, job.reserved)
        for output in job.keeps:
            self.cache.keep(job.node, output)
        self.cache.unpin(job.node)
        self.running -= 1
        while self._deliveries and (self._deliveries[0][2].cancelled or not self._deliveries[0][2].remaining):
            heappop(self._deliveries)

    def _release(self, job: Job, tokens: int) -> None:
        job.reserved -= tokens
        self.cache.release(tokens)

    def _purge(self) -> None:
        """Take dropped jobs out of the batch."""
        if not self._dropped:
            return
        self._dropped = False
        gone: dict[Key, Job] = {}
        if self._partial is not None and self._partial.cancelled:
            gone[self._partial.key] = self._partial
            self._partial = None
        for finish in self._finishes:
            if finish.job.cancelled:
                gone[finish.key] = finish.job
                self.size -= 1
                self._context -= finish.context - (finish.iteration - self._iteration)
        self._finishes = [finish for finish in self._finishes if not finish.job.cancelled]
        for job in gone.values():
            assert job.node is not None
            self.running -= 1
            self._release(job, job.reserved)
            self.cache.unpin(job.node)
        while self._deliveries and self._deliveries[0][2].cancelled:
            heappop(self._deliveries)
