"""The `sim` backend: engines that take the time predicted by a roofline model and write seeded text, on the caller's event loop.

Requests enter as at any engine; the answers leave when a continuous-batching server with this device would have
finished them. On a virtual clock (`VirtualLoop`) hours pass in seconds, and equal requests at equal times give equal
results to the last bit; on a real clock the engines take real time. The only clock is that of the running asyncio event loop.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, pairwise
from typing import TypeAlias

from pipeline.engine import Backend, Completion, Engine, EngineStatistics, Fact, Request, Timing, Tokenizer, Usage, packed
from pipeline.engines.meter import UsageMeter
from pipeline.engines.sim.device import SimDevice, devices_of, widened
from pipeline.engines.sim.output import Output, TextSource
from pipeline.engines.sim.replay import RecordedText
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.sharing import Share
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.speculation import SpeculationMeter, iterations_of
from pipeline.engines.sim.text import TextModel
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, RequestRefused
from pipeline.tasks import background_tasks

Done: TypeAlias = "asyncio.Future[None]"
"""Has a result when a job is over, be it finished or dropped; also where its task was cancelled."""


class DeviceClock:
    """Runs one device on the clock of the running event loop: a timer waits for its next event, handles that, and so on."""

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        """The time in seconds."""
        self._failed: asyncio.Future[None] = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Raise what went wrong in the device; runs until it is cancelled."""
        try:
            await self._failed
        finally:
            self._wait_until(math.inf)

    def adjust(self) -> None:
        """Wait until the device's next event, which may have moved."""
        event = self.device.next_event()
        if self._timer is None or event != self._timer.when():
            self._wait_until(event)

    def _wait_until(self, event: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(event, self._handle_event) if event < math.inf else None

    def _handle_event(self) -> None:
        try:
            self.device.advance(self.now())
            self._wait_until(self.device.next_event())
        except Exception as error:
            self._failed.set_exception(error)


class SimEngine:
    """The `Engine` contract over one share of a simulated device."""

    def __init__(self, role: str, spec: SimSpec, clock: DeviceClock, source: TextSource) -> None:
        self.role, self.spec, self._source = role, spec, source
        self.tokenizer: Tokenizer = source.tokenizer
        self.max_model_len, self.vocab_size = spec.max_model_len, source.vocab_size
        self.facts: dict[str, Fact] = _facts(spec) | source.facts
        self._clock = clock
        self._shares: list[Share] = []
        self._join_device()
        self._numbers = count()
        self._open_jobs: dict[Job, Done] = {}
        self._exit_reason, self._closed = "", False
        self._meter = UsageMeter()
        self._speculation = SpeculationMeter(spec.speculative) if spec.speculative else None

    async def generate(self, request: Request) -> Completion:
        """Answer `request`; see `Engine.generate`."""
        if self._exit_reason:
            raise EngineDead(self.role, self._exit_reason)
        validate_request(request, self.max_model_len, self.vocab_size, self.spec.adapters)
        output = self._source.output(request, self.max_model_len)
        jobs = self._jobs(request, output)
        await self._computed(jobs)
        first, *_ = jobs
        usage = Usage(input_tokens=len(first.prompt), cached_input_tokens=first.cached, output_tokens=output.sampled)
        self._meter.count(usage)
        if self._speculation:
            self._speculation.count(each for job in jobs for each in job.progress)
        return Completion(
            candidates=output.candidates,
            option_logprobs=output.option_logprobs,
            usage=usage,
            timing=Timing.of(first.arrived, first.scheduled, first.first_token, max(job.finished for job in jobs)),
        )

    def statistics(self) -> EngineStatistics:
        now = self._clock.now()
        return self._meter.statistics(
            busy_s=sum(share.busy_s(now) for share in self._shares),
            speculation=self._speculation.totals() if self._speculation else None,
            restarts=len(self._shares) - 1,
        )

    async def aclose(self) -> None:
        self._closed = True
        self.kill("it was closed")

    def kill(self, exit_reason: str) -> None:
        self._exit_reason = self._exit_reason or exit_reason
        for job in self._open_jobs:
            self._clock.device.drop(self._share, job, self._clock.now())
        self._clock.adjust()
        for done in self._open_jobs.values():
            _end(done)

    async def restart(self) -> None:
        """The cache is empty then, and no time passes."""
        if self._closed:
            raise EngineDead(self.role, "it was closed")
        self._join_device()
        self._exit_reason = ""

    def _join_device(self) -> None:
        """Take a new share of the device, with an empty queue and an empty cache."""
        self._share = self._clock.device.join(Scheduler(self.spec))
        self._shares.append(self._share)

    def _jobs(self, request: Request, output: Output) -> dict[Job, Done]:
        """The jobs of a request, each with what has a result when it is over: one for the first `max_num_seqs` candidates, and one for each
        further candidate. Raises `RequestRefused` where they can never fit."""
        prompt, spec, inner = packed(request.prompt_ids), self.spec, self.spec.speculative
        if (need := len(prompt) + sum(output.lengths)) > spec.kv_cache_tokens:
            raise RequestRefused(f"{need} tokens of keys and values do not fit; kv_cache_tokens is {spec.kv_cache_tokens}")
        now, cached, jobs = self._clock.now(), tuple(map(packed, output.cached)), {}
        progress = tuple(iterations_of(inner, request, *each) for each in enumerate(output.lengths)) if inner else ()
        for start, end in pairwise((0, *range(spec.max_num_seqs, len(output.lengths)), len(output.lengths))):
            done: Done = self._clock.loop.create_future()
            job = Job(
                key=(request.priority, now, request.request_id, next(self._numbers)),
                prompt=prompt,
                reusable=len(prompt) - 1,
                lengths=output.lengths[start:end],
                cached_outputs=cached[start:end],
                notify=partial(_end, done),
                progress=progress[start:end],
                adapter=request.adapter,
            )
            jobs[job] = done
        return jobs

    async def _computed(self, jobs: dict[Job, Done]) -> None:
        """Wait until the device has computed `jobs`; cancelling frees what they hold."""
        self._open_jobs |= jobs
        for job in jobs:
            if self._clock.device.add(self._share, job, job.arrived):
                self._clock.adjust()
        try:
            for done in jobs.values():
                await done
        finally:
            unfinished = [job for job in jobs if math.isnan(job.finished)]
            for job in jobs:
                del self._open_jobs[job]
            for job in unfinished:
                self._clock.device.drop(self._share, job, self._clock.now())
            if unfinished:
                self._clock.adjust()
        if unfinished:
            raise EngineDead(self.role, self._exit_reason)


def _end(done: Done) -> None:
    if not done.done():
        done.set_result(None)


def _facts(spec: SimSpec) -> dict[str, Fact]:
    name, rate = spec.device.name, float(spec.device.flops_per_s)
    facts: dict[str, Fact] = {"devices": (name,), "device_model": name, "device": name}
    facts |= {"kv_cache_tokens": spec.kv_cache_tokens, "batch_invariant": True}
    facts |= {} if spec.device.fit_error is None else {"fit_error": spec.device.fit_error}
    facts |= {} if spec.speculative is None else {"token_level": True}
    return facts | ({"flops_per_s": rate} if math.isfinite(rate) else {})


@asynccontextmanager
async def open_sim(specs: Mapping[str, SimSpec]) -> AsyncIterator[Mapping[str, Engine]]:
    """Open the simulated engines of all roles; those that name the same device share it. Raises `UsageError`."""
    sources = {role: _source(role, spec) for role, spec in specs.items()}
    clocks = {name: DeviceClock(SimDevice(device)) for name, device in devices_of(specs).items()}
    engines = {role: SimEngine(role, spec, clocks[spec.device.name], sources[role]) for role, spec in specs.items()}
    async with background_tasks() as tasks:
        for clock in clocks.values():
            tasks.start_soon(clock.run)
        try:
            yield engines
        finally:
            for engine in engines.values():
                await engine.aclose()


def _source(role: str, spec: SimSpec) -> TextSource:
    return TextModel(spec.model, spec.text) if spec.replay is None else RecordedText(role, spec.replay)


BACKEND = Backend(spec=SimSpec, open=open_sim, tokenizer=lambda *of: _source(*of).tokenizer, widened=widened)
