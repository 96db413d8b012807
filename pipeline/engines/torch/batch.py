"""One iteration on paper: which tokens are fed, which positions' logits are wanted, and what for."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.engines.torch.cache import Batch, Stretch
from pipeline.engines.torch.jobs import Job, Writing
from pipeline.engines.torch.sampling import Draws


class Filling:
    """A prefill: what a job feeds on its way into a slot, and the candidates that start from it."""

    def __init__(self, job: Job, writings: list[Writing], done: int) -> None:
        self.job, self.writings, self.done = job, writings, done
        self.slot = writings[0].slot
        self.chunk = 0
        """Tokens that are computed in this iteration."""

    @property
    def left(self) -> int:
        return len(self.job.fed) - self.done


class Pick(NamedTuple):
    """The log probability of `token` in a row of logits is wanted by `filling`."""

    row: int
    token: int
    filling: Filling


class Plan:
    """The flat batch of an iteration, from the sequences that decode and the prefills that go on."""

    def __init__(self, decoding: list[Writing], fillings: list[Filling]) -> None:
        self.fillings = fillings
        self.writings = list(decoding)
        """Candidates that get a token."""
        self.rows = list(range(len(decoding)))
        """The row of logits from which each of them gets it."""
        self.picks: list[Pick] = []
        self.keep = list(range(len(decoding)))
        """Flat positions whose logits are computed; a row is an index into this."""
        self._ids = [np.array([w.ids[-1] for w in decoding], dtype=np.int64)]
        self._slots = [np.array([w.slot for w in decoding], dtype=np.int64)]
        self._positions = [np.array([w.position for w in decoding], dtype=np.int64)]
        self._stretches: list[Stretch] = []
        self._fed = len(decoding)
        for filling in fillings:
            self._add(filling)
        self.ids, slots, positions = map(np.concatenate, (self._ids, self._slots, self._positions))
        self.batch = Batch(slots, positions, len(decoding), self._stretches)

    def draws(self) -> Draws:
        """How the candidates are sampled."""
        requests = [w.job.request for w in self.writings]
        return Draws(
            np.array([r.temperature for r in requests], dtype=np.float32),
            np.array([r.top_p for r in requests], dtype=np.float32),
            np.array([w.key for w in self.writings], dtype=np.uint64),
            np.array([len(w.ids) for w in self.writings], dtype=np.uint64),
        )

    def _add(self, filling: Filling) -> None:
        start, end = filling.done, filling.done + filling.chunk
        self._ids.append(filling.job.fed[start:end])
        self._slots.append(np.full(filling.chunk, filling.slot, dtype=np.int64))
        self._positions.append(np.arange(start, end, dtype=np.int64))
        self._stretches.append(Stretch(filling.slot, self._fed, self._fed + filling.chunk, start))
        self._want(filling, start, end)
        self._fed += filling.chunk

    def _want(self, filling: Filling, start: int, end: int) -> None:
        job, request = filling.job, filling.job.request
        if request.scored_ids:
            fed: NDArray[np.int64] = job.fed
            for position in range(max(start, len(job.prompt) - 1), min(end, len(fed) - 1)):
                self.picks.append(Pick(self._keep(position - start), int(fed[position + 1]), filling))
        elif end == len(job.fed):
            row = self._keep(filling.chunk - 1)
            self.picks += [Pick(row, token, filling) for token in request.option_ids]
            if not request.option_ids:
                self.writings += filling.writings
                self.rows += [row] * len(filling.writings)

    def _keep(self, offset: int) -> int:
        self.keep.append(self._fed + offset)
        return len(self.keep) - 1
