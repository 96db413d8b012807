"""What earlier sessions left of a server's run: its trace enters; the steps of chains that go on, and answers that were not told, leave."""

from collections.abc import Container
from pathlib import Path

import msgspec

from pipeline.data.requests.chat import MAX_SAMPLES
from pipeline.data.requests.errors import ApiError
from pipeline.data.requests.reply import ChainReply
from pipeline.serve.desk import EarlierChains, outcome_of
from pipeline.session.prepare import Prepared
from pipeline.store.events import ChainRow
from pipeline.store.kept_problems import kept_rows
from pipeline.store.read import read_batches, read_whole


def earlier_chains(run: Prepared) -> EarlierChains:
    """The chains of earlier sessions."""
    if run.folder is None or run.old is None:
        return EarlierChains()
    return EarlierChains(
        next_row=max(kept_rows(run.folder), default=0) + MAX_SAMPLES + 1,
        texts=_texts(run.folder, run.resume_state.chains),
    )


def earlier_outcomes(folder: Path, batch: str, answered: Container[str]) -> dict[str, dict[int, ChainReply | ApiError]]:
    """The ends of chains whose `problem_id` begins with `batch` and is not among those `answered`, by it and their numbers."""
    rows = [
        msgspec.convert(row, ChainRow)
        for part in read_whole(folder, "chains")
        for row in part.to_pylist()
        if row["problem_id"].startswith(batch) and row["problem_id"] not in answered
    ]
    texts = _texts(folder, {row.chain_id for row in rows})
    found: dict[str, dict[int, ChainReply | ApiError]] = {}
    for row in rows:
        found.setdefault(row.problem_id, {})[row.sample_index] = outcome_of(row, "".join(texts.get(row.chain_id, ())))
    return found


def _texts(folder: Path, chains: Container[str]) -> dict[str, list[str]]:
    """The steps of these chains, in their order."""
    texts: dict[str, list[tuple[int, str]]] = {}
    for part in read_batches(folder, "steps", ("chain_id", "step_index", "step_text")):
        for row in part.to_pylist():
            if row["chain_id"] in chains:
                texts.setdefault(row["chain_id"], []).append((row["step_index"], row["step_text"]))
    return {name: [text for _, text in sorted(steps)] for name, steps in texts.items()}
