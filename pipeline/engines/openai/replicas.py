"""Which replica a call goes to. Decides synchronously: no await and no clock."""

from collections import OrderedDict

MOST_CHAINS = 65536
"""Chains whose replica is remembered; the one that asked longest ago is forgotten first."""


class Router:
    """A chain stays with the replica that has its prefix, as long as that one is up; a new chain goes where least is in flight."""

    def __init__(self, replicas: int, most_chains: int = MOST_CHAINS) -> None:
        self.up = [True] * replicas
        self.in_flight = [0] * replicas
        self._chains = [0] * replicas
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._most_chains = most_chains

    def take(self, affinity: str) -> int | None:
        """The replica for one more call of the chain `affinity`, or None while none is up."""
        home = self._homes.get(affinity)
        if home is None or not self.up[home]:
            home = self._least_loaded()
            if home is None:
                return None
        if affinity:
            self._settle(affinity, home)
        self.in_flight[home] += 1
        return home

    def leave(self, replica: int) -> None:
        """A call to `replica` has ended."""
        self.in_flight[replica] -= 1

    def _least_loaded(self) -> int | None:
        alive = [replica for replica, up in enumerate(self.up) if up]
        return min(alive, key=lambda replica: (self.in_flight[replica], self._chains[replica]), default=None)

    def _settle(self, affinity: str, home: int) -> None:
        before = self._homes.pop(affinity, None)
        if before is not None:
            self._chains[before] -= 1
        self._homes[affinity] = home
        self._chains[home] += 1
        if len(self._homes) > self._most_chains:
            _, forgotten = self._homes.popitem(last=False)
            self._chains[forgotten] -= 1
