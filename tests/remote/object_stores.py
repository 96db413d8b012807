"""A real S3 server in this process, and a way to it that can be interrupted."""

import json
import logging
import re
import socket
import socketserver
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow.parquet as pq

BUCKET = "runs"
Fault = Literal["", "reset", "error", "silent"]
"""What becomes of requests: they are answered; the connection is cut; the answer is status 500; there is none."""
ANSWER_500 = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class ObjectServer:
    """The server, with one bucket."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import boto3
            from moto.server import ThreadedMotoServer

            logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
            self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            self._server.start()
            self.address: tuple[str, int] = self._server.get_host_and_port()
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            self.client: Any = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys)
            self.client.create_bucket(Bucket=BUCKET)

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"

    def names(self, prefix: str) -> list[str]:
        """The names of the objects below `prefix`, without it."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
        return sorted(each["Key"].removeprefix(f"{prefix}/") for each in found)

    def read(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def status(self, prefix: str) -> str:
        status: str = json.loads(self.read(f"{prefix}/run.json"))["status"]
        return status

    def close(self) -> None:
        self._server.stop()


class Way:
    """A TCP proxy to a server, by which requests can be lost."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.fault: Fault = ""
        self.requests: list[str] = []
        """The method and path of every request, those without an answer included."""
        self.fault_after: Callable[[int], Fault] = lambda count: self.fault
        """What becomes of a request, by how many came before it."""
        way = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                way._serve(self.request, target)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self._ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, client: socket.socket, target: tuple[str, int]) -> None:
        """Pass requests on, each by its own connection."""
        with suppress(OSError):
            while (request := _message(client)) is not None:
                self.requests.append(unquote(request.partition(b"\r\n")[0].decode().rpartition(" ")[0]))
                fault = self.fault_after(len(self.requests) - 1)
                if fault == "silent":
                    self._ended.wait()
                if fault == "error":
                    client.sendall(ANSWER_500)
                if fault:
                    return
                with socket.create_connection(target) as server:
                    server.sendall(re.sub(rb"\r\nexpect: *100-continue", b"", request, flags=re.IGNORECASE))
                    answer = _message(server, head=request.startswith(b"HEAD "))
                if answer is None:
                    return
                client.sendall(answer)


def _message(end: socket.socket, *, head: bool = False) -> bytes | None:
    """One HTTP message from `end`; None where it is closed. `head`: it answers a HEAD, and has no body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := end.recv(1 << 16))
        if not more:
            return None
    header, _, body = data.partition(b"\r\n\r\n")
    if b"100-continue" in header.lower():
        end.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in header.lower() and not head
    length = re.search(rb"content-length: *(\d+)", header, re.IGNORECASE)
    size = 0 if head or length is None else int(length[1])
    while not (_has_all_chunks(body) if chunked else len(body) >= size):
        body += (more := end.recv(1 << 16))
        if not more:
            return None
    return header + b"\r\n\r\n" + body


def _has_all_chunks(body: bytes) -> bool:
    """Whether a body in chunks, each after its size, is there to its end."""
    at = 0
    while (line := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:line].partition(b";")[0], 16)
        if size == 0:
            return body.endswith(b"\r\n\r\n")
        at = line + 2 + size + 2
    return False


@contextmanager
def way_to(server: ObjectServer) -> Iterator[Way]:
    way = Way(server.address)
    try:
        yield way
    finally:
        way.close()


def tables(folder: Path, *columns: str) -> dict[str, list[Any]]:
    """The rows of a run folder, in an order of their own."""
    found = {}
    for table in ("calls", "steps", "chains", "problems.parquet"):
        rows = pq.read_table(folder / table).to_pylist()
        found[table] = sorted(repr({name: value for name, value in row.items() if name not in columns}) for row in rows)
    return found
