"""The prefix cache of a simulated engine: a tree of token sequences for each adapter, of which the least recently used are evicted first.

Prompts and outputs enter, the length of the longest cached prefix leaves, exact to the token. The room that a running request
will need is reserved when it is admitted, so it never has to be evicted.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence


class Node:
    """A sequence of tokens in the tree, which continues that of its parent."""

    __slots__ = ("children", "offered", "parent", "pins", "tokens", "used")

    def __init__(self, tokens: Sequence[int], parent: "Node | None") -> None:
        self.tokens, self.parent = tokens, parent
        self.children: dict[int, Node] = {}
        """The nodes that continue this one, by their first token."""
        self.pins = 0
        """The number of running requests that need this node; one that has pins or children is not evicted."""
        self.used = 0
        """When it was last used, as the number of that use among all uses of nodes."""
        self.offered = False
        """True if it is noted for eviction."""


class PrefixCache:
    """Room for the keys and values of `capacity` tokens, cached or reserved: together never more than that."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cached = 0
        self.reserved = 0
        self._roots: defaultdict[str | None, Node] = defaultdict(lambda: Node((), None))
        """Where the tokens begin that were computed with an adapter, by its name; None: without one."""
        self._tick = 0
        self._unused: list[tuple[int, int, Node]] = []
        self._entries = 0

    def match(self, tokens: Sequence[int], most: int, adapter: str | None = None) -> tuple[Node, int]:
        """The node at which the longest prefix of `tokens`, at most `most` long, ends that is cached for `adapter`, and the prefix's
        length; pins the node."""
        node, length = self._walk(self._roots[adapter], tokens, 0, most)
        node.pins += 1
        return node, length

    def insert(self, node: Node, tokens: Sequence[int]) -> Node:
        """Add `tokens` after `node`; returns the node at which they end."""
        end, start = self._walk(node, tokens, 0, len(tokens))
        if start < len(tokens):
            leaf = end.children[tokens[start]] = Node(tokens[start:], end)
            self.cached += len(leaf.tokens)
            self._touch(leaf)
            return leaf
        return end

    def extend(self, node: Node, tokens: Sequence[int]) -> Node:
        """`insert`, and move a pin from `node` to the node at which they end."""
        end = self.insert(node, tokens)
        end.pins += 1
        self.unpin(node)
        return end

    def unpin(self, node: Node) -> None:
        """Take back a pin of `node`, which protects it, and so everything before it, from eviction."""
        node.pins -= 1
        self._touch(node)

    def reserve(self, tokens: int) -> bool:
        """Reserve room for that many tokens, evicting the least recently used; False when there is not enough room."""
        while self.cached + self.reserved + tokens > self.capacity:
            if not self._drop_one():
                return False
        self.reserved += tokens
        return True

    def release(self, tokens: int) -> None:
        """Return reserved room for that many tokens."""
        self.reserved -= tokens

    def _walk(self, node: Node, tokens: Sequence[int], start: int, most: int) -> tuple[Node, int]:
        """Follow `tokens[start:most]` below `node`, splitting the run in which they part from the tree."""
        while start < most:
            child = node.children.get(tokens[start])
            if child is None:
                break
            run = child.tokens
            stop = start + len(run)
            if stop > most or tokens[start:stop] != run:
                shared = _shared(run, tokens[start : min(stop, most)])
                return self._split(child, shared), start + shared
            node, start = child, stop
        return node, start

    def _split(self, lower: Node, length: int) -> Node:
        """Cut the run of `lower` after `length` tokens; returns the new node of the first part."""
        if length == len(lower.tokens):
            return lower
        upper = Node(lower.tokens[:length], lower.parent)
        upper.used = lower.used
        assert lower.parent is not None
        lower.parent.children[lower.tokens[0]] = upper
        lower.tokens, lower.parent = lower.tokens[length:], upper
        upper.children[lower.tokens[0]] = lower
        return upper

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.used = self._tick
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Note `node` for eviction, once, if it has no children and no pins."""
        if not node.offered and not node.children and not node.pins and node.parent is not None:
            node.offered = True
            self._entries += 1
            heapq.heappush(self._unused, (node.used, self._entries, node))

    def _drop_one(self) -> bool:
        while self._unused:
            used, _, node = heapq.heappop(self._unused)
            node.offered = False
            if node.used == used and not node.children and not node.pins and (parent := node.parent) is not None:
                del parent.children[node.tokens[0]]
                self.cached -= len(node.tokens)
                node.parent = None
                parent.used = max(parent.used, used)
                self._offer(parent)
                return True
            self._offer(node)  # with its last use, which was later
        return False


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix, by bisection, because comparing slices is fast."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
