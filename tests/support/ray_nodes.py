"""A program: a Ray cluster on this machine, whose nodes come and go as lines of JSON on stdin say; each is answered by a line on stdout.

{"add": {"num_cpus": 1}}   answers with the process of the new node, `raylet`
{"remove": RAYLET}         that node dies as a machine does
"""

import json
import sys
import warnings
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes: dict[int, Any] = {}
    _say({"address": cluster.address})
    for line in sys.stdin:
        order = json.loads(line)
        if "add" in order:
            node = cluster.add_node(**order["add"])
            raylet = node.all_processes["raylet"][0].process.pid
            nodes[raylet] = node
            _say({"raylet": raylet})
        else:
            cluster.remove_node(nodes.pop(order["remove"]), allow_graceful=False)
            _say({})
    cluster.shutdown()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
