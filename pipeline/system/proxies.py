"""Through which proxy, if any, a URL is asked: the environment is read, and nothing is sent.

What listens on this machine is never asked through a proxy, whatever the environment says; of others the variable is known by its name, so
that a message can name it.
"""

import os
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass


def is_loopback(url: str) -> bool:
    """True if the host of `url` is this machine, by its name or its address."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def proxy_variable(url: str) -> str | None:
    """The environment variable that names the proxy of `url`; None where it is asked directly, as one of this machine always is."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies_environment()
    scheme = next((each for each in (parts.scheme, "all") if proxies.get(each)), None)
    names = () if scheme is None else (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
    return next((name for name in names if os.environ.get(name)), None)


def ask_directly(url: str) -> None:
    """Let libraries that read the environment themselves ask the host of `url` without a proxy, where it is this machine."""
    host = urlsplit(url).hostname
    if host is None or not is_loopback(url):
        return
    for name in ("no_proxy", "NO_PROXY"):
        known = os.environ.get(name, "")
        if host not in known.split(","):
            os.environ[name] = ",".join(filter(None, (known, host)))
