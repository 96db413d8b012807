"""Looks for files and options that bring a command down, for as long as it is told.

    python tools/fuzz.py [--seconds 600] [--target NAME]... [--finds DIR]

Every target of `tests/fuzzing.py` gets an equal share of the time, in a process of its own: half of it with random
examples of hypothesis and half under atheris, which follows the code that was reached, where that is installed (`pip
install atheris`). What breaks a promise is kept in the folder of finds with its traceback, and the search continues; put it
into `tests/fuzz_finds/TARGET/` once it is mended. Exit code 1 when anything was found.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from hypothesis import HealthCheck, given, settings

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
SLOWEST_S = 20
"""An example that takes longer counts as found."""
NAMES = ("graph-bytes", "graph-values", "engines", "settings", "text", "parquet", "run")
WAYS = ("random", "followed") if find_spec("atheris") else ("random",)


class Search:
    """A search of one target."""

    def __init__(self, name: str, finds: Path) -> None:
        from tests.support.fuzzing import TARGETS  # here, so that it can be imported under atheris

        self.name, self.target, self._finds = name, TARGETS[name], finds / name
        self._count = 0

    def act(self, example: Any) -> None:
        """Try one example, and keep it if it breaks a promise."""
        self._count += 1
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.target.act(Path(folder), example)
            assert time.monotonic() - started < SLOWEST_S, f"took {time.monotonic() - started:.0f} s"
        except Exception:
            self._keep(example, traceback.format_exc())

    def randomly(self, seconds: float) -> None:
        """Random examples."""

        @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(self.target.examples)
        def some(example: Any) -> None:
            self.act(example)

        until = time.monotonic() + seconds
        while time.monotonic() < until:
            some()
        click.echo(f"{self.name}, random: {self._count:,} examples")

    def following(self, seconds: float) -> None:
        """Bytes that lead to code that was not reached before. Does not return."""
        import atheris

        with tempfile.TemporaryDirectory() as corpus:
            for number, seed in enumerate(self.target.seeds):
                (Path(corpus) / str(number)).write_bytes(seed)
            options = [f"-max_total_time={round(seconds)}", "-max_len=8192", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=0"]
            atheris.Setup([self.name, corpus, *options], lambda data: self.act(self.target.example_of(data)))
            atheris.Fuzz()

    def _keep(self, example: Any, said: str) -> None:
        """Once for each place in the code where it ends."""
        self._finds.mkdir(parents=True, exist_ok=True)
        lines = said.splitlines()
        place = [line for line in lines if line.startswith("  File")][-1] + lines[-1].partition(":")[0]
        label = hashlib.blake2b(place.encode(), digest_size=4).hexdigest()
        name, content = example if isinstance(example, tuple) else ("example", example)
        (self._finds / f"{label}-{name}").write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
        (self._finds / f"{label}.txt").write_text(said)


def alone(name: str, way: str, seconds: float, finds: Path) -> None:
    """Search in this process."""
    if way == "random":
        Search(name, finds).randomly(seconds)
        return
    import atheris

    with atheris.instrument_imports(include=["pipeline", "yaml", "csv", "gzip"]):
        search = Search(name, finds)
    search.following(seconds)


def apart(targets: Sequence[str], seconds: float, finds: Path) -> None:
    """Search in a process for each target and way."""
    for target in targets:
        for way in WAYS:
            share = str(seconds / len(targets) / len(WAYS))
            command = [sys.executable, __file__, "--alone", way, "--target", target, "--seconds", share, "--finds", str(finds)]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
            if way == "followed" or done.returncode:
                said = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line] or done.stderr.splitlines()[-3:]
                click.echo(f"{target}, {way}: exit code {done.returncode}, {' '.join(said)}")


@click.command()
@click.option("--seconds", default=600.0, show_default=True)
@click.option("--target", "targets", multiple=True, type=click.Choice(NAMES), default=NAMES)
@click.option("--finds", type=click.Path(path_type=Path), default=ROOT / "fuzz_finds", show_default=True)
@click.option("--alone", "way", type=click.Choice(WAYS), hidden=True)
def main(seconds: float, targets: tuple[str, ...], finds: Path, way: str | None) -> None:
    """Search for what brings a command down."""
    if way is not None:
        alone(targets[0], way, seconds, finds)
        return
    apart(targets, seconds, finds)
    found = sorted(finds.glob("*/*.txt"))
    for path in found:
        click.echo(f"{path}: {path.read_text().splitlines()[-1][:200]}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
