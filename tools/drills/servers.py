"""The engines are struck: servers that answer with what is no answer, or do not answer at all."""

import random
from collections.abc import Mapping
from pathlib import Path

from drills.grounds import served
from drills.signals import started
from drills.toll import Ground, Toll, toll
from tests.support.small_server import Fault, Handler, Reply, SmallServer, cut, hang, raw, status

HTML = raw(b"<!doctype html><title>502 Bad Gateway</title>")
FOR_A_MOMENT: Mapping[str, Fault] = {
    "429": status(429),
    "500": status(500),
    "503": status(503),
    "HTML": HTML,
    "cut": cut,
    "empty": raw(b""),
    "half of a JSON object": raw(b'{"choices": [{"index": 0, "te'),
}
"""What may be another time: the request is sent again."""
FOR_EVER: Mapping[str, Fault] = FOR_A_MOMENT | {
    "400": status(400),
    "401": status(401),
    "403": status(403),
    "404": status(404),
    "hang": hang,
}
"""What one of two replicas may do all the time: the other one takes over."""


class Sometimes:
    """A fault that meets a `share` of the requests for completions, and counts them."""

    def __init__(self, fault: Fault, share: float, luck: random.Random) -> None:
        self.fault, self.share, self.luck, self.count = fault, share, luck, 0

    def __call__(self, handler: Handler, reply: Reply) -> None:
        if handler.command == "POST" and self.luck.random() < self.share:
            self.count += 1
            self.fault(handler, reply)
        else:
            handler.send(reply)


def moody(way: str, folder: Path, rows: int, luck: random.Random, share: float = 0.1) -> Toll:
    """The only server misbehaves at a share of the requests."""
    with served(folder, rows, replicas=1) as (ground, [server]):
        return _solved(f"server: {way}, at times", ground, folder / "run", server, Sometimes(FOR_A_MOMENT[way], share, luck))


def one_of_two(way: str, folder: Path, rows: int, luck: random.Random) -> Toll:
    """One of two replicas misbehaves all the time, the models it lists excepted."""
    with served(folder, rows, replicas=2, timeout_s=2.0, takes_s=0.05) as (ground, [_, server]):
        return _solved(f"one of two servers: {way}, always", ground, folder / "run", server, Sometimes(FOR_EVER[way], 1.0, luck))


def _solved(name: str, ground: Ground, run: Path, server: SmallServer, fault: Sometimes) -> Toll:
    """A run whose `server` has the `fault` once chains can start."""
    log = run.with_suffix(".log")
    command, _ = started(ground, run, log, wait=True)
    server.always = fault
    code = command.wait()
    return toll(name, ground, run, log, faults=fault.count, wrong_ends=int(code != 0))
