"""What faults strike: runs over problems made for it, on simulated, varying and real engines, and on servers of this process."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import structs

from drills.command import carried_out
from drills.toll import Ground, over
from pipeline.engines.sim.text import sim_answer
from pipeline.engines.tokenizer import HFTokenizer

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT))

from tests.support.small_server import VLLM, Handler, Reply, SmallServer, small_server  # noqa: E402

SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
ARITH = ROOT / "datasets/arith/test.parquet"
SERVER = "{role}: {{backend: openai, model: tiny, base_url: '{url}', tokenizer: 'bundled:tiny-target', timeout_s: {timeout_s}}}\n"
SAME, VARYING, SERVED, TORCH = "simulated, same answers", "simulated, varying answers", "servers", "torch, same answers"


def simulated(folder: Path, rows: int, graph: str = "speccot") -> Ground:
    """Engines that answer the same twice, and a run that nothing disturbed."""
    return compared(SAME, (*_given(_problems(folder, rows), graph), "--engines", str(SIM)), ids(rows), folder / f"whole-{graph}-{rows}")


def varying(folder: Path, rows: int, graph: str = "speccot") -> Ground:
    """Engines that never answer the same twice."""
    engines = folder / "varying.yaml"
    engines.write_text(SIM.read_text().replace("backend: sim", "backend: faulty\n  faults: {varies: true}"))
    return Ground(engines=VARYING, begin=(*_given(_problems(folder, rows), graph), "--engines", str(engines)), chains=ids(rows))


def torch(folder: Path, rows: int, graph: str = "speccot") -> Ground:
    """The bundled models, and a run that nothing disturbed."""
    ground = compared(TORCH, (*_given(ARITH, graph), "--limit", str(rows)), frozenset(), folder / "whole-torch")
    return structs.replace(ground, chains=frozenset(over(folder / "whole-torch")))


def compared(engines: str, begin: tuple[str, ...], chains: frozenset[str], whole: Path) -> Ground:
    """A ground whose run is carried out once, as `whole`."""
    code = carried_out([*begin, "--output", str(whole)], whole.with_suffix(".log"))
    if code:
        raise RuntimeError(f"the undisturbed run ended with {code}, see {whole.with_suffix('.log')}")
    return Ground(engines=engines, begin=begin, chains=chains, whole=whole)


class Paced:
    """Answers after `takes_s` seconds, and not before `gate` is open."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s, self.gate = takes_s, threading.Event()
        self.gate.set()

    def __call__(self, handler: Handler, reply: Reply) -> None:
        time.sleep(self.takes_s)
        self.gate.wait()
        handler.send(reply)


@contextmanager
def served(folder: Path, rows: int, timeout_s: float = 60.0, takes_s: float = 0.0) -> Iterator[tuple[Ground, SmallServer]]:
    """A server of this process, which takes `takes_s` for an answer."""
    with small_server(VLLM, HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))) as server:
        server.always = Paced(takes_s)
        folder.mkdir(parents=True, exist_ok=True)
        engines = folder / "servers.yaml"
        engines.write_text("".join(SERVER.format(role=role, url=server.base_url, timeout_s=timeout_s) for role in ("draft", "target")))
        begin = (*_given(_problems(folder, rows), "speccot"), "--engines", str(engines))
        yield Ground(engines=SERVED, begin=begin, chains=ids(rows)), server


def ids(rows: int) -> frozenset[str]:
    """The chains of so many problems without ids of their own."""
    return frozenset(f"{row}#0" for row in range(1, rows + 1))


def _given(problems: Path, graph: str) -> tuple[str, ...]:
    return ("run", str(ROOT / f"graphs/{graph}.yaml"), "--input", str(problems))


def _problems(folder: Path, rows: int) -> Path:
    path = folder / f"problems-{rows}.jsonl"
    texts = [f"Problem number {i}?" for i in range(rows)]
    path.write_bytes(b"\n".join(msgspec.json.encode({"problem": text, "answer": sim_answer(text)}) for text in texts) + b"\n")
    return path
