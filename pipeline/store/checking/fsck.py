"""Examining a run folder and repairing it: what it has, what is missing, doubled, foreign or damaged, which chains are not consistent.

No engine is needed. Repairing deletes no file: those that are not the run's own are put aside in a subfolder.
"""

import os
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pyarrow as pa
from msgspec import Struct, structs

from pipeline.errors import InputError, RunFolderError, boundary, reason
from pipeline.store.checking.consistency import Broken, find_broken, take_back
from pipeline.store.checking.inventory import MAIN, NOT_OURS, Inventory, complete_manifest, label_of, take_inventory
from pipeline.store.folder import is_held
from pipeline.store.manifest import FILE as MANIFEST
from pipeline.store.manifest import Manifest, number_of, stands
from pipeline.store.part_file import open_part
from pipeline.store.read import check_folder
from pipeline.store.run_file import FILE as RUN_JSON
from pipeline.store.run_file import RunFile
from pipeline.store.tables import recover
from pipeline.store.wal import read_wal

ASIDE = "aside"
"""The subfolder for files that are not the run's own."""
_MOVED = ".moved"
"""The ending of files whose places are being changed."""
SHOWN = 5
"""Chains that are named for each reason."""


class TableContent(Struct, frozen=True):
    """What a run folder has of one table."""

    table: str
    parts: int
    write_ahead: int
    """Write-ahead files."""
    rows: int
    """Rows in the files of the run itself."""
    bytes: int


class Flaw(Struct, frozen=True):
    """Something that is wrong with a run folder."""

    where: str
    """A file in the folder, or `chains`."""
    what: str
    """What is wrong with it, as a clause after `where`."""

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


class Examination(Struct, frozen=True):
    """What a run folder has, and what is wrong with it."""

    folder: str
    status: str
    """As `run.json` says; `unknown` without one."""
    held: bool
    """Whether a process is at work in the folder."""
    sessions: int
    manifest: bool
    """Whether it has a manifest, which earlier versions did not write."""
    tables: list[TableContent]
    flaws: list[Flaw]
    repaired: list[str] = []
    """What was done about it, one clause each."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.flaws


def examine(folder: Path) -> Examination:
    """Examine a run folder, reading every row; nothing is written. Raises `InputError` if `folder` is not a run folder."""
    return _examined(folder, is_held(folder))


def repair(folder: Path) -> Examination:
    """Repair a locked run folder as far as it can be, and examine it again. May be interrupted and repeated.

    Raises `InputError` where it is no run folder or a table cannot be read, `RunFolderError` where it cannot be written.
    """
    inventory = _inventory(folder)
    damaged = [name for name, content in _scan(folder, inventory).items() if isinstance(content, str)]
    aside = {f"{each.table}/{each.file}": each.why for each in inventory.of(*NOT_OURS, "irregular", "damaged")}
    aside |= dict.fromkeys(damaged, "cannot be read")
    lost = [f"{each.table}/{each.file}" for each in inventory.of("missing")]
    with boundary(RunFolderError, f"{folder}: cannot be written", foreign=OSError):
        if lost or aside.keys() & _listed(folder):
            _set_interrupted(folder)
        done = [f"{name} {why}: moved to {_put_aside(folder, name)}" for name, why in aside.items()]
        done += _put_home(folder, [f"{each.table}/{each.file}" for each in inventory.of("swapped")])
        ahead = sum(len(list((folder / table).glob("wal-*.arrows"))) for table in MAIN)
        recover(folder)
        done += [f"{ahead} write-ahead files became parts"] if ahead else []
        for table in MAIN:
            (folder / table).mkdir(exist_ok=True)
        done += [f"{name} is missing: removed from the manifest" for name in lost if not stands((folder / name).parent, Path(name).name)]
        _strike_missing(complete_manifest(folder))
    broken = find_broken(folder)
    if any(each.again for each in broken):
        _set_interrupted(folder)
    take_back(folder, broken)
    again = sum(each.again for each in broken)
    done += [f"rows of {len(broken):,} chains were taken back; {again:,} of them will be continued"] if broken else []
    return structs.replace(_examined(folder, False), repaired=done)


def _examined(folder: Path, held: bool) -> Examination:
    inventory = _inventory(folder)
    run, whole = _run_file(folder)
    content = _scan(folder, inventory)
    flaws = [] if whole else [Flaw(RUN_JSON, "is missing or cannot be read: the run cannot be resumed")]
    if not inventory.listed and (folder / MANIFEST).exists():
        flaws.append(Flaw(MANIFEST, "has no whole line"))
    there = {each.table for each in inventory.files}
    if inventory.listed and there and not held:
        flaws += [Flaw(table, "is missing") for table in MAIN if table not in there and not (folder / table).exists()]
    flaws += [Flaw(f"{each.table}/{each.file}", each.why) for each in inventory.files if each.verdict != "sound"]
    unreadable = [Flaw(name, f"cannot be read: {why}") for name, why in content.items() if isinstance(why, str)]
    if not held and not unreadable and not inventory.of("damaged", "irregular", "swapped"):
        flaws += _broken(find_broken(folder))
    tables = [_table(folder, inventory, table, content) for table in sorted(there, key=_order)]
    return Examination(str(folder), run.status, held, len(run.sessions), inventory.listed, tables, [*flaws, *unreadable])


def _inventory(folder: Path) -> Inventory:
    """The files in `folder`; raises `InputError` if it is not a run folder."""
    check_folder(folder)
    found = take_inventory(folder)
    if not found.files and not (folder / RUN_JSON).exists() and not (folder / MANIFEST).exists():
        raise InputError(str(folder), f"not a run folder: it has neither {RUN_JSON} nor tables")
    return found


def _run_file(folder: Path) -> tuple[RunFile, bool]:
    """As much of `run.json` as can be read, and whether it can be read whole."""
    try:
        return RunFile.read(folder), True
    except InputError:
        return RunFile.read_known(folder), False


def _scan(folder: Path, inventory: Inventory) -> dict[str, int | str]:
    """Of every file of the run's own the number of its rows, all of which are read, or why they cannot be read."""
    content: dict[str, int | str] = {}
    for each in inventory.of("sound", "unlisted", "changed", "swapped"):
        file = folder / each.table / each.file
        if file.suffix == ".arrows" and (file.parent / f"part-{number_of(file.name)}.parquet").exists():
            continue  # it has become a part
        try:
            content[f"{each.table}/{each.file}"] = sum(_batch_rows(file))
        except FileNotFoundError:
            continue  # it has become a part meanwhile
        except (OSError, pa.ArrowException) as error:
            content[f"{each.table}/{each.file}"] = reason(error)
    return content


def _batch_rows(file: Path) -> Iterator[int]:
    if file.suffix == ".arrows":
        yield from (batch.num_rows for batch in read_wal(file))
        return
    with open_part(file, pre_buffer=False) as part:
        yield from (batch.num_rows for batch in part.iter_batches(1024))


def _broken(broken: list[Broken]) -> Iterator[Flaw]:
    for why in dict.fromkeys(each.why for each in broken):
        chains = [each.chain_id for each in broken if each.why == why]
        named = ", ".join(chains[:SHOWN]) + (", ..." if len(chains) > SHOWN else "")
        yield Flaw("chains", f"are not consistent: of {len(chains):,} {why} ({named})")


def _table(folder: Path, inventory: Inventory, table: str, content: Mapping[str, int | str]) -> TableContent:
    names = [each.file for each in inventory.files if each.table == table and each.verdict not in ("missing", *NOT_OURS)]
    rows = [content.get(f"{table}/{name}", 0) for name in names]
    return TableContent(
        table=table,
        parts=sum(name.startswith("part-") for name in names),
        write_ahead=sum(name.startswith("wal-") for name in names),
        rows=sum(each for each in rows if isinstance(each, int)),
        bytes=sum(os.lstat(folder / table / name).st_size for name in names if os.path.lexists(folder / table / name)),
    )


def _order(table: str) -> tuple[int, str]:
    return (MAIN.index(table) if table in MAIN else len(MAIN), table)


def _set_interrupted(folder: Path) -> None:
    """Make a finished run resumable, before any of its rows may be removed."""
    run, whole = _run_file(folder)
    if whole and run.status == "finished":
        structs.replace(run, status="interrupted").write(folder)


def _listed(folder: Path) -> set[str]:
    """The files that the manifest lists; of a folder without one every file of the tables."""
    manifest = Manifest.read(folder)
    if manifest is None:
        return {str(path.relative_to(folder)) for table in MAIN for path in (folder / table).glob("*")}
    return {f"{table}/{name}" for table, files in manifest.settled().items() for name in files}


def _put_aside(folder: Path, name: str) -> str:
    """Move a file into the subfolder for those that are not the run's own; its new name."""
    table, _, file = name.partition("/")
    place = folder / ASIDE / table
    place.mkdir(parents=True, exist_ok=True)
    targets = (place / (file if number == 1 else f"{file}.{number}") for number in count(1))
    target = next(target for target in targets if not os.path.lexists(target))
    os.rename(folder / name, target)
    return str(target.relative_to(folder))


def _put_home(folder: Path, swapped: list[str]) -> list[str]:
    """Give files that hold each other's rows their own names; one whose place is taken is put aside.

    All of them get other names first; what an interrupted repair left of those is put home, too.
    """
    for name in swapped:
        path = folder / name
        os.rename(path, path.with_name(f"{path.name}{_MOVED}"))
    done = []
    for draft in sorted(folder.glob(f"*/*{_MOVED}")):
        was = f"{draft.parent.name}/{draft.name.removesuffix(_MOVED)}"
        label = label_of(draft)
        kind, ending = ("wal", "arrows") if draft.name.startswith("wal-") else ("part", "parquet")
        home = folder / label.table / f"{kind}-{label.number:05}.{ending}" if label else folder / was
        if os.path.lexists(home):
            done.append(f"{was} has the same place as another file: moved to {_put_aside(folder, str(draft.relative_to(folder)))}")
            continue
        home.parent.mkdir(exist_ok=True)
        os.rename(draft, home)
        done.append(f"{was} is {home.relative_to(folder)} again")
    return done


def _strike_missing(manifest: Manifest) -> None:
    """Strike off the manifest what is neither there itself nor as the part or write-ahead file of the same number."""
    for table, files in list(manifest.tables.items()):
        for name in list(files):
            if not stands(manifest.folder / table, name):
                manifest.strike(manifest.folder / table / name)
