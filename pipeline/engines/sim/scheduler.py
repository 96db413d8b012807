"""Continuous batching of one simulated engine, in device work, not time, and in segments of iterations.

Jobs enter; they leave finished, with the moments at which they were scheduled, had their first token and ended. Plain
synchronous code: no clock, no task. Work is measured in the seconds that it would take if no other engine shared the device.

Why nothing loops over tokens: the length of every answer is known when its request arrives, and between two decisions
the batch changes only when a sequence ends. So the time up to the next decision is a *forecast*: a few segments of equal
iterations, one for each sequence that ends on the way, with durations in closed form (`BatchCost.duration`). An answer of
10,000 tokens costs as much to simulate as one of 10.

What holds whenever no method runs:
- `work`, `_iteration` and `_batch` describe one boundary between iterations, the start of the first segment.
- Segments follow each other without a gap. Only the first may compute prompts, and it is then a single iteration.
- `_finishes` has, in order, an entry for each sequence that decodes, and for each whose prompt the first segment completes.
- At most one job's prompt is computed in part.
- Room for all keys and values of a running job is reserved in the cache: no job is ever thrown out again.

An engine that speculates token by token gives a sequence several tokens in one iteration, drawn when the request arrives
(`CandidateIterations`). Its end is counted in iterations all the same; between first and last token its context is taken to grow evenly, so
that a segment's traffic stays an arithmetic series.

Example (`tests/engines/test_sim_scheduler.py` runs it): an iteration takes 1 s, whatever is in it. Job A has a prompt and
two sequences, of 3 and 5 tokens. The forecast at 0 is: the prompt, with both first tokens, from 0 to 1; two iterations of two
sequences from 1 to 3, where the shorter one ends; two of one sequence from 3 to 5, where A is finished. That is one event, at
5. Job B, a prompt and 2 tokens, arrives at 3.5, in the first iteration of the last segment. That iteration cannot
be undone, so the segment is cut after it, at 4; there B's prompt joins A's last iteration, from 4 to 5. A is finished at 5
as it would have been, B has its first token at 5 and its second at 6.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from pipeline.engines.sim.cache import Node, PrefixCache
from pipeline.engines.sim.roofline import Cost, Roofline
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.speculation import CandidateIterations
from pipeline.system.ageing_queue import AgeingQueue

Key = tuple[int, float, str, int]
"""The order of jobs: priority, arrival, request id, number."""


class Job(Struct, eq=False):
    """One request in a scheduler; its lengths are known when it arrives, because the text source has given its text."""

    key: Key
    prompt: Sequence[int]
    reusable: int
    """Prompt tokens that may come from the prefix cache."""
    lengths: tuple[int, ...]
    """Tokens to sample for each candidate; the prompt's last iteration samples the first ones."""
    cached_outputs: Sequence[Sequence[int]]
    """Output tokens of each candidate that the prefix cache keeps when the job is finished."""
    notify: Callable[[], object]
    """Called once, when the last of its sequences has ended."""
    progress: Sequence[CandidateIterations] = ()
    """How each candidate is written, in an engine that speculates; empty: every iteration samples a token."""
    adapter: str | None = None
    iterations: tuple[int, ...] = ()
    """Iterations that each candidate takes, from the one that samples its first token."""
    rates: tuple[float, ...] = ()
    """Tokens by which the context of each candidate grows with an iteration, on average."""
    sequences: int = 0
    unfinished: int = 0
    arrived: float = math.nan
    scheduled: float = math.nan
    first_token: float = math.nan
    finished: float = math.nan
    """The times of these events on the caller's clock, in seconds; NaN until they happen."""
    node: Node | None = None
    """The node of the prefix cache at which its prompt ends so far; None while it does not run."""
    cached: int = 0
    computed: int = 0
    reserved: int = 0
    """Numbers of tokens: prompt tokens from the cache, prompt tokens computed, and room reserved in the cache."""
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.iterations = tuple(each.iterations for each in self.progress) or self.lengths
        self.rates = tuple(each.rate for each in self.progress) or (1,) * len(self.lengths)
        self.sequences = self.unfinished = len(self.lengths)
        self.arrived = self.key[1]


class Segment(Struct, frozen=True):
    """Iterations of one batch, from `start` to `end` in device work."""

    start: float
    end: float
    iterations: int
    cost: Cost
    chunks: tuple[tuple[Job, int], ...]
    """Each job whose prompt is computed here, with the number of its tokens; only in a segment of one iteration."""

    def cut(self, work: float) -> "Segment":
        """The segment up to the end of the iteration that is under way, or just ends, at `work`.

        Example: iterations of 2 s from 10 on, so that they end at 12, 14, 16, ...; cut at 13 or at 14 it ends at 14.
        """
        if self.iterations == 1:
            return self
        count = 1 + bisect_left(range(1, self.iterations), work - self.start, key=self.cost.duration)
        return self if count == self.iterations else segment(self.start, count, self.cost)


def segment(start: float, iterations: int, cost: Cost, chunks: tuple[tuple[Job, int], ...] = ()) -> Segment:
    """A segment of that many iterations that begins at `start`, in device work."""
    return Segment(start, start + cost.duration(iterations), iterations, cost, chunks)


class Finish(NamedTuple):
    """The future end of one sequence: its last token comes with `iteration`, when it reads `context` tokens of keys and values."""

    iteration: int
    key: Key
    candidate: int
    context: float
    rate: float
    """Tokens by which its context grows with an iteration."""
    job: Job
    ends_job: bool
    """True if no sequence of its job ends later."""


class Decoding(NamedTuple):
    """The sequences that decode at one boundary between iterations: how many there are, the tokens whose keys and values they read in the
    next iteration, and by how many more in each further one: tokens that an iteration samples, on average."""

    size: int = 0
    context: float = 0
    growth: float = 0

    def after(self, iterations: int) -> "Decoding":
        """The same sequences, that many iterations later."""
        return Decoding(self.size, self.context + iterations * self.growth, self.growth)

    def joined(self, job: Job) -> "Decoding":
        """These sequences and those of `job`, each of which has its first token."""
        context = self.context + job.sequences * (len(job.prompt) + 1)
        return Decoding(self.size + job.sequences, context, self.growth + sum(job.rates))

    def without(self, finish: Finish, iterations: int = 0) -> "Decoding":
        """These sequences without one that would end after that many iterations."""
        context = finish.context - iterations * finish.rate
        return Decoding(self.size - 1, self.context - context, self.growth - finish.rate)


class Scheduler:
    """The queue, the batch and the forecast of one engine."""

    def __init__(self, spec: SimSpec, cache: PrefixCache | None = None) -> None:
        self.roofline, self.cache = Roofline(spec), cache or PrefixCache(spec.kv_cache_tokens)
        self.max_num_seqs, self.max_num_batched_tokens = spec.max_num_seqs, spec.max_num_batched_tokens
        self.work = 0.0
        """Device work at the boundary between iterations that the other fields describe."""
        self.forecast: deque[Segment] = deque()
        """What will be computed until the next decision if nothing arrives and nothing is cancelled; empty: nothing is computed."""
        self._batch = Decoding()
        self._iteration = 0
        """The number of iterations that are over."""
        self._queue: AgeingQueue[Job] = AgeingQueue()
        """Waiting jobs; none is admitted before the head of the queue, which may wait for sequences or room."""
        self._partial: Job | None = None
        """The job whose prompt is computed in part; there is never a second one."""
        self._finishes: list[Finish] = []
        self._dropped = False
        """True if a running job was cancelled since the last decision."""

    @property
    def end(self) -> float:
        """Device work at which the forecast ends, infinite where there is none."""
        return self.forecast[-1].end if self.forecast else math.inf

    @property
    def needs_decision(self) -> bool:
        """True if the next iteration may compute anything but the sequences that decode already."""
        return bool(self._dropped or self._partial or self._queue)

    def finishes_job(self) -> bool:
        """True if a job ends with the forecast."""
        end = self._iteration + sum(each.iterations for each in self.forecast)
        return any(finish.ends_job for finish in self._ending(end))

    def add(self, job: Job) -> bool:
        """Queue `job`; returns whether the next iteration may have to be decided again for it."""
        self._queue.put(job.key, job)
        return self._queue.head is job

    def drop(self, job: Job) -> bool:
        """Cancel `job`; returns whether the next iteration has to be decided again for it."""
        job.cancelled = True
        if job in self._queue:
            was_head = self._queue.head is job
            self._queue.drop(job)
            return was_head
        self._dropped = True
        return True

    def decide(self, now: float) -> None:
        """Decide what the next iterations compute, from a boundary at time `now` on."""
        self._purge()
        chunks = self._prompts(now)
        self._make_forecast(chunks)

    def catch_up(self, work: float, time: Callable[[float], float]) -> None:
        """Move the boundary over the segments that end by `work`, except the last one; `time` gives the time of a moment of work."""
        while len(self.forecast) > 1 and self.forecast[0].end <= work:
            done = self.forecast.popleft()
            self._advance(done, time(done.end))

    def finish(self, time: Callable[[float], float]) -> list[Job]:
        """Move the boundary to the end of the forecast; returns the jobs that finish there."""
        self.catch_up(self.end, time)
        done = self.forecast.popleft()
        return self._advance(done, time(done.end))

    def cut(self, work: float) -> bool:
        """Let the forecast end with the iteration that is under way at `work`; False if none is, so that a decision is due at once."""
        first = self.forecast[0]
        self.forecast.clear()
        if work <= first.start and not first.chunks:
            return False
        self.forecast.append(first.cut(work))
        return True

    def _prompts(self, now: float) -> list[tuple[Job, int]]:
        """Prompt tokens for the next iteration: first the prompt that is under way, then what waits and fits."""
        sequences = self._batch.size
        budget = self.max_num_batched_tokens - sequences * (1 + self.roofline.proposals)
        chunks: list[tuple[Job, int]] = []
        while budget > 0:
            job = self._partial or self._admit(sequences, now)
            if job is None:
                break
            left = len(job.prompt) - job.cached - job.computed
            tokens = min(left, budget)
            chunks.append((job, tokens))
            budget -= tokens
            sequences += job.sequences
            self._partial = job if tokens < left else None
        return chunks

    def _admit(self, sequences: int, now: float) -> Job | None:
        """Admit the next job of the queue, if it fits next to that many `sequences` and into the cache; else None."""
        if not self._queue or sequences + (job := self._queue.head).sequences > self.max_num_seqs:
            return None
        job.node, job.cached = self.cache.match(job.prompt, job.reusable, job.adapter)
        reserved = len(job.prompt) + sum(job.lengths) - job.cached
        if not self.cache.reserve(reserved):
            self.cache.unpin(job.node)
            job.node = None
            return None
        self._queue.take()
        job.reserved, job.scheduled = reserved, max(now, job.arrived)
        return job

    def _make_forecast(self, chunks: list[tuple[Job, int]]) -> None:
        """Set the forecast to the segments up to the next decision; `chunks` are the prompt tokens of the first one."""
        at, batch, iteration = self.work, self._batch, self._iteration
        if chunks:
            tokens = sum(count for _, count in chunks)
            reads = sum(job.cached + job.computed + count for job, count in chunks)
            self.forecast.append(segment(at, 1, self.roofline.iteration(batch.size, batch.context, 0, tokens, reads), tuple(chunks)))
            at, batch, iteration = self.end, batch.after(1), iteration + 1
            for job, count in chunks:
                if job.cached + job.computed + count == len(job.prompt):
                    self._expect(job)
                    batch = batch.joined(job)
        # A prompt that is done may free sequences and room, so waiting jobs are considered again right after it.
        if batch.size and self._partial is None and not (chunks and self._queue):
            self._forecast_decoding(at, batch, iteration)

    def _expect(self, job: Job) -> None:
        """Note when the sequences of `job` will end; the next iteration gives their first tokens."""
        most = max(job.iterations)
        for candidate, (iterations, rate) in enumerate(zip(job.iterations, job.rates, strict=True)):
            last, context = self._iteration + iterations, len(job.prompt) + 1 + rate * (iterations - 1)
            insort(self._finishes, Finish(last, job.key, candidate, context, rate, job, iterations == most))

    def _forecast_decoding(self, at: float, batch: "Decoding", iteration: int) -> None:
        """Add segments of decoding until the next job is finished or, while a job waits to be admitted, until a sequence ends.

        `at` is the device work, `iteration` the number of iterations that are over, where these segments of `batch` begin.
        """
        horizon: float = math.inf
        for finish in self._finishes:
            if finish.iteration > horizon:
                break
            if finish.iteration > iteration:
                count = finish.iteration - iteration
                self.forecast.append(segment(at, count, self.roofline.iteration(*batch)))
                at, batch, iteration = self.end, batch.after(count), finish.iteration
            batch = batch.without(finish)
            if self._queue or finish.ends_job:
                horizon = finish.iteration

    def _advance(self, done: Segment, now: float) -> list[Job]:
        """Move batch and cache to the end of the segment `done`, at time `now`; returns the jobs that finish there."""
        self.work = done.end
        self._iteration += done.iterations
        self._batch = self._batch.after(done.iterations)
        for job, tokens in done.chunks:
            job.computed += tokens
            if job.cached + job.computed == len(job.prompt):
                self._start_decoding(job, now)
        ended, finished = self._ending(self._iteration), []
        del self._finishes[: len(ended)]
        for finish in ended:
            self._batch, job = self._batch.without(finish), finish.job
            job.unfinished -= 1
            if not job.unfinished:
                job.finished = now
                self._leave(job, job.cached_outputs)
                finished.append(job)
        return finished

    def _ending(self, iteration: int) -> list[Finish]:
        """The sequences that end with this iteration or before it."""
        return self._finishes[: bisect_right(self._finishes, iteration, key=attrgetter("iteration"))]

    def _start_decoding(self, job: Job, now: float) -> None:
        """Put the computed prompt of `job` into the cache, where other jobs may reuse it, and let its sequences decode."""
        assert job.node is not None
        job.first_token = now
        self._batch = self._batch.joined(job)
        job.node = self.cache.extend(job.node, job.prompt[job.cached :])
        self._release(job, job.reserved - sum(job.lengths))

    def _leave(self, job: Job, outputs: Sequence[Sequence[int]] = ()) -> None:
        """Take out `job`, which runs no more; the cache keeps these `outputs`, in the room reserved for them."""
        assert job.node is not None
        self._release(job, job.reserved)
        for output in outputs:
            self.cache.insert(job.node, output)
        self.cache.unpin(job.node)

    def _release(self, job: Job, tokens: int) -> None:
        job.reserved -= tokens
        self.cache.release(tokens)

    def _purge(self) -> None:
        """Take cancelled jobs out of the batch."""
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
                self._batch = self._batch.without(finish, finish.iteration - self._iteration)
        self._finishes = [finish for finish in self._finishes if not finish.job.cancelled]
        for job in gone.values():
            self._leave(job)
