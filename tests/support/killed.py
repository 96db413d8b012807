"""What a run folder was at an earlier moment of its run."""

import shutil
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.store import write_part


def cut(whole: Path, folder: Path, share: float) -> None:
    """Make `folder` what `whole` was when that share of its time had passed, as SIGKILL would have left it."""
    ends = pc.sort_indices(pq.read_table(whole / "calls").column("end_unix_ns"))
    times = pq.read_table(whole / "calls").column("end_unix_ns").take(ends).to_pylist()
    moment = times[min(int(share * len(times)), len(times) - 1)]
    shutil.copytree(whole, folder)
    for table in ("calls", "steps", "chains"):
        for part in (folder / table).glob("*.parquet"):
            content = pq.read_table(part)
            write_part(part, content.filter(pc.less_equal(content.column("end_unix_ns"), moment)))
    card = msgspec.json.decode((whole / "run.json").read_bytes())
    card |= {"status": "running", "totals": {}}
    card["sessions"][-1] |= {"status": "running", "ended_unix_ns": None}
    (folder / "run.json").write_bytes(msgspec.json.encode(card))
