"""A server on this machine: a socket to listen at, and which requests are a web page's that its reader did not mean to send.

A browser sends what any page tells it to, to this machine too. A page of another site is known by what browsers say of it (Fetch Metadata,
the header `Origin`); one whose site's name was made to mean this machine (DNS rebinding) by that name in the header `Host`.
"""

import errno
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from urllib.parse import urlsplit

from pipeline.errors import UsageError, reason


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens until the end, where `port` is 0 at any that is free; raises `UsageError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            what = f"--port {port}: cannot listen on {host}: {os.strerror(error.errno).lower()}; choose another one, or 0 for any free one"
        else:
            what = f"--host {host}: cannot listen on it: {reason(error)}"
        raise UsageError(what) from error
    with listener:
        yield listener


def is_named(headers: Mapping[str, str], names: Collection[str]) -> bool:
    """Whether a request asks for this machine: by an address, as `localhost`, or by one of `names`. `headers` are in small letters.

    An address is no name that a site could have. 0.0.0.0 counts only as one of `names`, as browsers say less of who asks for it.
    """
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host in names or _is_address(host)


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site made the browser ask; programs say nothing of where they are. Browsers that do not send
    `Sec-Fetch-Site` send `Origin` with whatever is no mere reading."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


def _is_address(host: str) -> bool:
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return False
