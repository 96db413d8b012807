"""Continuous batching: each iteration admits what fits, computes one flat batch of prefills and decodes, and samples.

Requests join and leave between iterations. Jobs enter, finished jobs leave; no socket is known here.
"""

import time
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from pipeline.engine import EngineStatistics, Usage
from pipeline.engines.meter import UsageMeter
from pipeline.engines.torch.batch import Filling, Plan
from pipeline.engines.torch.cache import KVCache
from pipeline.engines.torch.jobs import Job, Waiting, Writing
from pipeline.engines.torch.sampling import choose, sample
from pipeline.engines.torch.slots import Copy, Slots
from pipeline.engines.torch.spec import TorchSpec


class Loop:
    """All that is waiting, running and kept, over one model."""

    def __init__(self, model: Any, cache: KVCache, slots: Slots, spec: TorchSpec, max_model_len: int) -> None:
        self.model, self.cache, self.slots, self.device = model, cache, slots, model.device
        self.max_num_seqs, self.max_num_batched_tokens = spec.max_num_seqs, spec.max_num_batched_tokens
        self.max_model_len = max_model_len
        self.waiting = Waiting()
        self._decoding: list[Writing] = []
        self._filling: list[Filling] = []
        self._jobs: dict[int, Job] = {}
        self._meter = UsageMeter()
        self.busy_s = 0.0

    def add(self, job: Job) -> None:
        """Queue `job`."""
        job.arrival_s = time.monotonic()
        self._jobs[job.number] = job
        self.waiting.add(job)

    def abort(self, number: int) -> None:
        """Forget a job, wherever it is; what it computed stays in the cache."""
        if self._jobs.pop(number, None) is None:
            return
        self.waiting.discard(number)
        gone = [w for w in self._decoding if w.job.number == number]
        gone += [w for f in self._filling if f.job.number == number for w in f.writings]
        self._decoding = [w for w in self._decoding if w.job.number != number]
        self._filling = [f for f in self._filling if f.job.number != number]
        for writing in gone:
            self.slots.release(writing.slot)

    @property
    def idle(self) -> bool:
        return not self._jobs

    def statistics(self) -> EngineStatistics:
        """The moment's view."""
        running, waiting = len(self._jobs) - len(self.waiting), len(self.waiting)
        return self._meter.statistics(running=running, waiting=waiting, kv_cache_usage=self.slots.usage, busy_s=self.busy_s)

    def step(self) -> list[Job]:
        """One iteration; the jobs that it finished."""
        started_s = time.monotonic()
        self._admit(started_s)
        plan = self._plan()
        logits = self._forward(plan)
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens, chosen = self._sample(plan, logits, logprobs)
        picked = self._picked(plan, logprobs)
        now_s = time.monotonic()
        self._advance(plan, now_s)
        touched = self._deliver(plan, tokens, chosen)
        self._deliver_picks(plan, picked)
        touched.update((f.job.number, f.job) for f in plan.fillings)
        finished = [self._finish(job) for job in touched.values() if job.finished]
        self.busy_s += time.monotonic() - started_s
        return finished

    def _admit(self, now_s: float) -> None:
        free = self.max_num_seqs - len(self._decoding) - sum(len(f.writings) for f in self._filling)
        while free and len(self.waiting):
            job = self.waiting.next()
            count = min(free, job.unstarted)
            self._start(job, count, now_s)
            free -= count
            if not job.unstarted:
                self.waiting.started(job)

    def _start(self, job: Job, count: int, now_s: float) -> None:
        """Give `count` candidates of `job` slots; the first one's is prefilled, the others are forked from it."""
        affinity = job.request.affinity
        self._make_room(len(job.fed))
        placement = self.slots.place(job.prompt, affinity)
        self._carry_out(placement.copies)
        slots = [placement.slot]
        for _ in range(count - 1):
            reserved = self.slots.reserve(affinity)
            self._carry_out(reserved.copies)
            slots.append(reserved.slot)
        if not job.started:
            job.first_scheduled_s, job.cached_tokens = now_s, placement.cached
        writings = [Writing(job, job.started + i, slot) for i, slot in enumerate(slots)]
        job.started += count
        self._filling.append(Filling(job, writings, placement.cached))

    def _carry_out(self, copies: list[Copy]) -> None:
        for copy in copies:
            self.cache.copy(*copy)

    def _make_room(self, tokens: int) -> None:
        capacity = self.cache.capacity
        if tokens <= capacity:
            return
        while capacity < tokens:
            capacity *= 2
        capacity = min(capacity, self.max_model_len)
        self.cache.grow(capacity)
        self.slots.grow(capacity)

    def _plan(self) -> Plan:
        """What is computed in this iteration: all that decode, and the oldest prefills within the token budget."""
        self._make_room(max((w.position + 1 for w in self._decoding), default=0))
        budget = max(self.max_num_batched_tokens - len(self._decoding), 1)
        going = []
        for filling in self._filling:
            if not budget:
                break
            filling.chunk = min(filling.left, budget)
            budget -= filling.chunk
            going.append(filling)
        return Plan(self._decoding, going)

    def _forward(self, plan: Plan) -> Tensor:
        """Logits, float32, of the positions that the plan keeps."""
        batch = plan.batch
        self.slots.write(batch.slots, batch.positions, plan.ids)
        self.cache.begin(batch)
        output = self.model(
            input_ids=torch.from_numpy(plan.ids).to(self.device)[None],
            position_ids=torch.from_numpy(batch.positions).to(self.device)[None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if len(plan.keep) == len(plan.ids) else self._tensor(plan.keep),
        )
        logits: Tensor = output.logits[0].float()
        return logits

    def _sample(self, plan: Plan, logits: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
        """A token for each of the plan's writings, and its log probability."""
        if not plan.writings:
            return [], []
        if len(plan.rows) != len(plan.keep) or plan.rows[-1] != len(plan.keep) - 1:
            rows = self._tensor(plan.rows)
            logits, logprobs = logits.index_select(0, rows), logprobs.index_select(0, rows)
        tokens = sample(logits, plan.draws())
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()

    def _picked(self, plan: Plan, logprobs: Tensor) -> list[float]:
        if not plan.picks:
            return []
        picked: list[float] = logprobs[self._tensor([p.row for p in plan.picks]), self._tensor([p.token for p in plan.picks])].tolist()
        return picked

    def _advance(self, plan: Plan, now_s: float) -> None:
        """Count what was prefilled; candidates of finished prefills decode from now on, each in a slot of its own."""
        for filling in plan.fillings:
            filling.done += filling.chunk
            if filling.left:
                continue
            job = filling.job
            job.first_token_s = job.first_token_s or now_s
            for writing in filling.writings[1:]:
                self.cache.copy(*self.slots.fork(filling.slot, writing.slot, len(job.prompt)))
        self._filling = [f for f in self._filling if f.left]

    def _deliver(self, plan: Plan, tokens: list[int], chosen: list[float]) -> dict[int, Job]:
        """Give each writing its token; the jobs of those that ended."""
        going, touched = [], {}
        for writing, token, logprob in zip(plan.writings, tokens, chosen, strict=True):
            if writing.push(token, logprob):
                self.slots.release(writing.slot)
                touched[writing.job.number] = writing.job
            else:
                going.append(writing)
        # In the order of slots, so that the running ones can be looked at as one view.
        self._decoding = sorted(going, key=_slot) if plan.fillings else going
        return touched

    def _deliver_picks(self, plan: Plan, picked: list[float]) -> None:
        wanted: dict[Filling, list[float]] = {}
        for pick, logprob in zip(plan.picks, picked, strict=True):
            wanted.setdefault(pick.filling, []).append(logprob)
        for filling, logprobs in wanted.items():
            job = filling.job
            if job.request.option_ids:
                _choose(job, filling.writings[0], logprobs)
            else:
                job.scored_logprobs += tuple(logprobs)
            if not filling.left:
                self.slots.release(filling.slot)

    def _finish(self, job: Job) -> Job:
        del self._jobs[job.number]
        self._meter.count(Usage(input_tokens=len(job.fed), cached_input_tokens=job.cached_tokens, output_tokens=job.output_tokens))
        job.end_s = time.monotonic()
        return job

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


_slot = attrgetter("slot")


def _choose(job: Job, writing: Writing, logprobs: list[float]) -> None:
    """End a choice: the option, and the log probabilities of all."""
    job.option_logprobs = tuple(logprobs)
    index = choose(logprobs, job.request.temperature, writing.key)
    job.settle(job.request.option_ids[index], logprobs[index])
