"""Runs over problems made for them, and what strikes them: the process is killed or stopped, the disk is full, the server misbehaves."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from drills.command import Command
from drills.toll import Ground, Said, Toll, card, over, summed, toll
from pipeline.engines.sim.text import sim_answer
from pipeline.engines.tokenizer import HFTokenizer

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT))

from tests.support.small_server import VLLM, Fault, Handler, Reply, cut, raw, small_server, status  # noqa: E402

SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
ARITH = ROOT / "datasets/arith/test.parquet"
SERVER = "{role}: {{backend: openai, model: tiny, base_url: '{url}', tokenizer: 'bundled:tiny-target'}}\n"
ENDS = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (130, -signal.SIGTERM, 128 + signal.SIGTERM),
}
"""The exit codes of commands that were hit; the negative ones where they had not begun to listen."""
FOR_A_MOMENT: Mapping[str, Fault] = {
    "429": status(429),
    "500": status(500),
    "503": status(503),
    "HTML": raw(b"<!doctype html><title>502 Bad Gateway</title>"),
    "cut": cut,
    "empty": raw(b""),
    "half of a JSON object": raw(b'{"choices": [{"index": 0, "te'),
}
"""What may be another time: the request is sent again."""
GOES_ON = 3
"""How often a run is taken up with more room."""


def simulated(folder: Path, rows: int) -> Ground:
    """Engines that answer the same twice, and a run that nothing disturbed."""
    return _compared("simulated", folder / f"whole-{rows}", _problems(folder, rows), "--engines", str(SIM))


def torch(folder: Path, rows: int) -> Ground:
    """The bundled models, and a run that nothing disturbed."""
    return _compared("torch", folder / "whole-torch", ARITH, "--limit", str(rows))


def _compared(engines: str, whole: Path, problems: Path, *more: str) -> Ground:
    begin, log = _begin(problems, *more), whole.with_suffix(".log")
    if code := Command([*begin, "--output", str(whole)], log).wait():
        raise RuntimeError(f"the undisturbed run ended with {code}, see {log}")
    return Ground(engines=f"{engines}, same answers", begin=begin, chains=frozenset(over(whole)), whole=whole)


def varying(folder: Path, rows: int) -> Ground:
    """Engines that never answer the same twice."""
    return _varying("simulated", folder, rows, SIM.read_text().replace("backend: sim", "backend: faulty\n  faults: {varies: true}"))


def _varying(engines: str, folder: Path, rows: int, specs: str) -> Ground:
    file = folder / f"{engines}.yaml"
    file.write_text(specs)
    begin, chains = _begin(_problems(folder, rows), "--engines", str(file)), frozenset(f"{row}#0" for row in range(1, rows + 1))
    return Ground(engines=f"{engines}, varying answers", begin=begin, chains=chains)


def _begin(problems: Path, *more: str) -> tuple[str, ...]:
    return ("run", str(ROOT / "graphs/speccot.yaml"), "--input", str(problems), *more)


def _problems(folder: Path, rows: int) -> Path:
    """A file of problems without ids."""
    path = folder / f"problems-{rows}.jsonl"
    texts = [f"Problem number {i}?" for i in range(rows)]
    path.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts) + b"\n")
    return path


def killed(
    ground: Ground, folder: Path, strikes: int, luck: random.Random, longest_s: float, number: signal.Signals = signal.SIGKILL
) -> Toll:
    """Runs that are hit at random moments, one after the other in folders under `folder`, until `strikes` have hit."""
    tolls = list[Toll]()
    while (left := strikes - sum(each.faults for each in tolls)) > 0:
        tolls.append(_killed_until_done(ground, folder / f"{number.name}-{len(tolls)}", left, luck, longest_s, number))
    return summed(tolls)


def _killed_until_done(ground: Ground, run: Path, strikes: int, luck: random.Random, longest_s: float, number: signal.Signals) -> Toll:
    """Start a run and hit it at random moments, at most `strikes` times, going on after each; then let it end.

    A third of the moments are up to `longest_s` after the process began, the others after its chains could start, or rows were written.
    """
    struck, wrong, resume_s, said, log = 0, 0, list[float](), Said(), run.with_suffix(".log")
    run.parent.mkdir(parents=True, exist_ok=True)
    while True:
        last, moment = struck == strikes, luck.choice(("at once", "with chains", "with rows"))
        command, took_s = started(ground, run, log, wait=last or moment != "at once")
        resume_s += [took_s] if took_s else []
        if not last:
            size = rows_bytes(run)
            while moment == "with rows" and not command.over and rows_bytes(run) == size:
                time.sleep(0.002)
            command.process.join(luck.uniform(0, longest_s))
            struck += not command.over
            command.strike(number)
        code = command.wait()
        if last or code == 0:
            more = {"wrong_ends": wrong + (code != 0), "resume_s": tuple(resume_s)}
            return toll(f"{number.name} at random moments", ground, run, log, faults=struck, said=said, **more)
        wrong += code not in ENDS[number]
        said = over(run) | said


def started(ground: Ground, run: Path, log: Path, *, wait: bool) -> tuple[Command, float | None]:
    """A command at work on the run, if `wait` one whose chains can start; of one that goes on the seconds that this took."""
    before, began = len(card(run).get("sessions", [])), time.monotonic()
    command = Command(ground.command(run), log)
    while wait and not command.over and len(card(run).get("sessions", [])) == before:
        time.sleep(0.002)
    return command, time.monotonic() - began if wait and before else None


def rows_bytes(run: Path) -> int:
    """Bytes of all tables; other ones when rows were written."""
    size = 0
    for path in run.glob("*/*.*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def moody(way: str, folder: Path, rows: int, luck: random.Random, share: float = 0.1) -> Toll:
    """A run whose only server misbehaves at a `share` of the requests for completions once chains can start."""
    folder.mkdir(parents=True, exist_ok=True)
    struck, log = 0, folder / "run.log"

    def at_times(handler: Handler, reply: Reply) -> None:
        nonlocal struck
        if handler.command == "POST" and luck.random() < share:
            struck += 1
            FOR_A_MOMENT[way](handler, reply)
        else:
            handler.send(reply)

    with small_server(VLLM, HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))) as server:
        specs = "".join(SERVER.format(role=role, url=server.base_url) for role in ("draft", "target"))
        ground = _varying("servers", folder, rows, specs)
        command, _ = started(ground, folder / "run", log, wait=True)
        server.always = at_times
        code = command.wait()
    return toll(f"server: {way}, at times", ground, folder / "run", log, faults=struck, wrong_ends=int(code != 0))


class CannotMount(Exception):
    """Only root can make a small file system, and not in every container."""


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[None]:
    """At `place` is a file system of `size` bytes; raises `CannotMount`."""
    place.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True)
    if made.returncode:
        raise CannotMount(made.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def full(ground: Ground, folder: Path, sizes: Sequence[int]) -> Toll:
    """A run on a disk of each of the `sizes` in bytes, which is enlarged when the run could not go on."""
    return summed([_filled(ground, folder / f"disk-{size}", size) for size in sizes])


def _filled(ground: Ground, place: Path, size: int) -> Toll:
    log, run = place.with_suffix(".log"), place / "run"
    with small_disk(place, size):
        code = Command(ground.command(run), log).wait()
        was_full = code != 0
        errors = "".join(line for line in log.read_text().splitlines() if line.startswith("error: "))
        wrong = int(was_full and (code not in (1, 2) or "no space left on device" not in errors))
        said = over(run) if was_full else Said()
        subprocess.run(["mount", "-o", f"remount,size={256 << 20}", str(place)], check=True)
        for _ in range(GOES_ON if was_full else 0):
            if (code := Command(ground.command(run), log).wait()) == 0:
                break
        if not card(run):
            raise RuntimeError(f"no run could be begun on a disk of {size} bytes, see {log}")
        return toll("disk full, then enlarged", ground, run, log, faults=int(was_full), said=said, wrong_ends=wrong + (code != 0))
