"""Continuous batching: each iteration admits what fits, computes one flat batch of prefills and decodes, and samples.

Requests join and leave between iterations. A `BatchPlan` is the list of what one iteration computes; `BatchRunner` makes it,
computes it and gives the results to the requests. No socket is known here.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.confidence import LIKELIEST
from pipeline.engine import Completion, EngineStatistics, Fact, Request
from pipeline.engines.meter import UsageMeter
from pipeline.engines.torch.cache import BatchLayout, KVCache, PrefillChunk, SlotTable
from pipeline.engines.torch.sampling import SamplingParams, choose, sample
from pipeline.engines.torch.sequences import Decode, RequestState, Sequence, Stops
from pipeline.engines.torch.spec import TorchSpec
from pipeline.system.ageing_queue import AgeingQueue


class Prefill:
    """A request whose prompt is being computed in a slot, and the candidates that start from it."""

    def __init__(self, state: RequestState, sequences: list[Sequence], done: int) -> None:
        self.state, self.sequences, self.done = state, sequences, done
        self.slot = sequences[0].slot
        self.chunk = 0
        """Tokens that are computed in this iteration."""

    @property
    def left(self) -> int:
        """Tokens that are still to be computed."""
        return len(self.state.prompt) - self.done


class BatchPlan:
    """The flat batch of a forward pass: the sequences that decode and the prefills that continue, all with one adapter or none."""

    def __init__(self, decoding: list[Sequence], prefills: list[Prefill], adapter: str | None = None) -> None:
        self.prefills, self.adapter = prefills, adapter
        self.sequences = list(decoding)
        """The candidates that get a token in this iteration."""
        self.rows = list(range(len(decoding)))
        """For each of these candidates, the row of logits that its token is sampled from."""
        self.choices: list[tuple[int, Prefill]] = []
        """The prefills that end in a choice, each after its row of logits."""
        self.keep = list(range(len(decoding)))
        """Flat positions whose logits are computed; a row of logits is an index into this list."""
        ids = [np.array([sequence.ids[-1] for sequence in decoding], dtype=np.int64)]
        slots = [np.array([sequence.slot for sequence in decoding], dtype=np.int64)]
        positions = [np.array([sequence.position for sequence in decoding], dtype=np.int64)]
        chunks, fed = [], len(decoding)
        for prefill in prefills:
            start, end = prefill.done, prefill.done + prefill.chunk
            ids.append(prefill.state.prompt[start:end])
            slots.append(np.full(prefill.chunk, prefill.slot, dtype=np.int64))
            positions.append(np.arange(start, end, dtype=np.int64))
            chunks.append(PrefillChunk(prefill.slot, fed, fed + prefill.chunk, start))
            fed += prefill.chunk
            if end == len(prefill.state.prompt):
                self.keep.append(fed - 1)
                if prefill.state.request.option_ids:
                    self.choices.append((len(self.keep) - 1, prefill))
                else:
                    self.sequences += prefill.sequences
                    self.rows += [len(self.keep) - 1] * len(prefill.sequences)
        self.ids = np.concatenate(ids)
        self.batch = BatchLayout(np.concatenate(slots), np.concatenate(positions), len(decoding), chunks)

    def sampling_params(self) -> SamplingParams:
        """The sampling parameters of `sequences`, one row for each."""
        requests = [sequence.state.request for sequence in self.sequences]
        return SamplingParams(
            np.array([request.temperature for request in requests], dtype=np.float32),
            np.array([request.top_p for request in requests], dtype=np.float32),
            np.array([request.top_k for request in requests], dtype=np.int64),
            np.array([request.min_p for request in requests], dtype=np.float32),
            np.array([sequence.key for sequence in self.sequences], dtype=np.uint64),
            np.array([len(sequence.ids) for sequence in self.sequences], dtype=np.uint64),
        )


class LoadedModel(NamedTuple):
    """A transformers model on its device, with its tokenizer's `decode` and its limits."""

    module: Any
    decode: Decode
    eos_ids: frozenset[int]
    max_model_len: int
    vocab_size: int
    facts: Mapping[str, Fact]
    use_adapter: Callable[[str | None], None]
    """Makes the model compute with an adapter, or without."""


class BatchRunner:
    """The `BatchedModel` of engine `torch`: the requests of one model, waiting and running, and its key-value cache."""

    def __init__(self, model: LoadedModel, cache: KVCache, slots: SlotTable, spec: TorchSpec) -> None:
        self.max_model_len, self.vocab_size, self.facts = model.max_model_len, model.vocab_size, dict(model.facts)
        self._model, self._cache, self._slots, self._spec = model, cache, slots, spec
        self._device = model.module.device
        self._adapters = {name: number << 32 for number, name in enumerate((None, *spec.adapters))}
        """What is added to a token's id for each adapter, where slots compare prefixes: one computed with another adapter never matches."""
        self._stops = lru_cache(maxsize=64)(lambda strings, ids: Stops(strings, ids, model.eos_ids, model.decode))
        self._states: dict[int, RequestState] = {}
        self._waiting: AgeingQueue[RequestState] = AgeingQueue()
        """Those with candidates that have not started."""
        self._prefills: list[Prefill] = []
        self._decoding: list[Sequence] = []
        self._meter = UsageMeter()
        self._busy_s = 0.0
        self._written_tokens = 0

    def add(self, number: int, request: Request) -> None:
        stops = self._stops(request.stop, request.stop_ids)
        state = RequestState(number, request, stops, self._model.decode, self.max_model_len, time.monotonic())
        self._states[number] = state
        self._waiting.put(request.priority, state)

    def abort(self, number: int) -> None:
        """Keys and values that were computed stay in the cache."""
        state = self._states.pop(number, None)
        if state is not None and state in self._waiting:
            self._waiting.drop(state)
        running = [*self._decoding, *(sequence for prefill in self._prefills for sequence in prefill.sequences)]
        for sequence in running:
            if sequence.state.number == number:
                self._slots.release(sequence.slot)
        self._decoding = [sequence for sequence in self._decoding if sequence.state.number != number]
        self._prefills = [prefill for prefill in self._prefills if prefill.state.number != number]

    @property
    def idle(self) -> bool:
        return not self._states

    def reset_prefix_cache(self) -> None:
        self._slots.reset_prefix_cache()

    def statistics(self) -> EngineStatistics:
        return self._meter.statistics(busy_s=self._busy_s, written_tokens=self._written_tokens)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        started_s = time.monotonic()
        self._admit(started_s)
        touched: dict[int, RequestState] = {}
        plans = self._plans()
        self._decoding = []
        for plan in plans:
            touched |= self._compute(plan)
        if any(plan.prefills for plan in plans):
            # In the order of slots, so that attention can read neighbouring ones as one view (`BatchLayout.spreads`).
            self._decoding.sort(key=attrgetter("slot"))
        now_s = time.monotonic()
        finished = [(number, state.completion(now_s)) for number, state in touched.items() if state.finished]
        for number, completion in finished:
            del self._states[number]
            self._meter.count(completion.usage)
        self._busy_s += now_s - started_s
        return finished

    def _admit(self, now_s: float) -> None:
        """Start waiting candidates while fewer than `max_num_seqs` sequences run."""
        free = self._spec.max_num_seqs - len(self._decoding) - sum(len(prefill.sequences) for prefill in self._prefills)
        while free and self._waiting:
            state = self._waiting.head
            count = min(free, state.unstarted)
            self._start(state, count, now_s)
            free -= count
            if not state.unstarted:
                self._waiting.take()

    def _start(self, state: RequestState, count: int, now_s: float) -> None:
        """Give a slot to each of `count` candidates of `state`; the first one's is prefilled, the others are copied from it."""
        self._make_room(len(state.prompt))
        first = self._slots.place(state.prompt + self._adapters[state.request.adapter], state.affinity)
        places = [first, *(self._slots.reserve(state.affinity) for _ in range(count - 1))]
        for copy in (copy for place in places for copy in place.copies):
            self._cache.copy(*copy)
        if not state.started:
            state.first_scheduled_s, state.cached_tokens = now_s, first.cached
        sequences = [Sequence(state, state.started + i, place.slot) for i, place in enumerate(places)]
        state.started += count
        self._prefills.append(Prefill(state, sequences, first.cached))

    def _make_room(self, tokens: int) -> None:
        capacity = self._cache.capacity
        if tokens > capacity:
            while capacity < tokens:
                capacity *= 2
            capacity = min(capacity, self.max_model_len)
            self._cache.grow(capacity)
            self._slots.grow(capacity)

    def _plans(self) -> list[BatchPlan]:
        """Choose what this iteration computes: all sequences that decode, and the oldest prefills within the token budget. Every adapter
        has its own forward pass, so other sequences of the batch change a sequence no more than without adapters."""
        self._make_room(max((sequence.position + 1 for sequence in self._decoding), default=0))
        budget = max(self._spec.max_num_batched_tokens - len(self._decoding), 1)
        going = []
        for prefill in self._prefills:
            if not budget:
                break
            prefill.chunk = min(prefill.left, budget)
            budget -= prefill.chunk
            going.append(prefill)
        parts: list[Sequence | Prefill] = [*self._decoding, *going]
        adapters = dict.fromkeys(part.state.request.adapter for part in parts)
        return [
            BatchPlan(
                [sequence for sequence in self._decoding if sequence.state.request.adapter == adapter],
                [prefill for prefill in going if prefill.state.request.adapter == adapter],
                adapter,
            )
            for adapter in adapters
        ]

    def _compute(self, plan: BatchPlan) -> dict[int, RequestState]:
        """Compute a plan and deliver what comes of it; returns the requests that it was for or that ended, by number."""
        logits = self._forward(plan)
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens, chosen = self._sample(plan, logits, logprobs)
        likeliest = self._likeliest(plan, logprobs)
        rows = [row for row, prefill in plan.choices for _ in prefill.state.request.option_ids]
        options = [token for _, prefill in plan.choices for token in prefill.state.request.option_ids]
        found = logprobs[self._tensor(rows), self._tensor(options)].tolist() if rows else []
        self._advance(plan, time.monotonic())
        touched = self._deliver(plan, tokens, chosen, likeliest)
        self._choose(plan, iter(found))
        return touched | {prefill.state.number: prefill.state for prefill in plan.prefills}

    def _forward(self, plan: BatchPlan) -> Tensor:
        """Compute the batch; returns the logits (len(plan.keep), vocabulary), float32, of the positions that the plan keeps."""
        batch = plan.batch
        self._model.use_adapter(plan.adapter)
        self._slots.write(batch.slots, batch.positions, plan.ids + self._adapters[plan.adapter])
        self._cache.begin(batch)
        output = self._model.module(
            input_ids=torch.from_numpy(plan.ids).to(self._device)[None],
            position_ids=torch.from_numpy(batch.positions).to(self._device)[None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=0 if len(plan.keep) == len(plan.ids) else self._tensor(plan.keep),
        )
        logits: Tensor = output.logits[0].float()
        return logits

    def _sample(self, plan: BatchPlan, logits: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
        """A token for each of the plan's sequences, and its log probability."""
        if not plan.sequences:
            return [], []
        if len(plan.rows) != len(plan.keep) or plan.rows[-1] != len(plan.keep) - 1:
            rows = self._tensor(plan.rows)
            logits, logprobs = logits.index_select(0, rows), logprobs.index_select(0, rows)
        tokens = sample(logits, plan.sampling_params())
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()

    def _likeliest(self, plan: BatchPlan, logprobs: Tensor) -> dict[Sequence, list[float]]:
        """The log probabilities of the likeliest tokens, of each of the plan's sequences whose request asks for them."""
        asking = {each: row for each, row in zip(plan.sequences, plan.rows, strict=True) if each.state.request.logprobs}
        if not asking:
            return {}
        rows = logprobs.index_select(0, self._tensor(list(asking.values())))
        return dict(zip(asking, rows.topk(min(LIKELIEST, rows.shape[-1]), dim=-1).values.tolist(), strict=True))

    def _advance(self, plan: BatchPlan, now_s: float) -> None:
        """Count the tokens that were prefilled; candidates of finished prefills decode from now on, each in its own slot."""
        for prefill in plan.prefills:
            prefill.done += prefill.chunk
            if not prefill.left:
                prefill.state.first_token_s = prefill.state.first_token_s or now_s
                for sequence in prefill.sequences[1:]:
                    self._cache.copy(*self._slots.fork(prefill.slot, sequence.slot, len(prefill.state.prompt)))
        self._prefills = [prefill for prefill in self._prefills if prefill.left]

    def _deliver(
        self, plan: BatchPlan, tokens: list[int], chosen: list[float], likeliest: Mapping[Sequence, list[float]]
    ) -> dict[int, RequestState]:
        """Give each sequence its token; those that continue decode from now on. Returns the requests of those that ended, by number."""
        touched = {}
        self._written_tokens += len(tokens)
        for sequence, token, logprob in zip(plan.sequences, tokens, chosen, strict=True):
            if sequence.push(token, logprob, likeliest.get(sequence)):
                self._slots.release(sequence.slot)
                touched[sequence.state.number] = sequence.state
            else:
                self._decoding.append(sequence)
        return touched

    def _choose(self, plan: BatchPlan, found: Iterator[float]) -> None:
        """End each choice with one of its options, whose log probabilities follow each other in `found`."""
        for _, prefill in plan.choices:
            state, request = prefill.state, prefill.state.request
            state.option_logprobs = tuple(islice(found, len(request.option_ids)))
            index = choose(list(state.option_logprobs), request.temperature, prefill.sequences[0].key)
            state.settle(request.option_ids[index], state.option_logprobs[index])
            self._written_tokens += 1
            self._slots.release(prefill.slot)

    def _tensor(self, values: Collection[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
