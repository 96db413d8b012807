"""Runs the published script of SpecReason on problems, one after the other in one process, with greedy sampling.

    python -m bench.peers.script SCRIPT PROBLEMS BUDGET

The working directory has the problems as the data set that the script loads, and gets what it writes. It samples at 0.6 and cannot be told
otherwise: its client is made to ask at 0. Prints, as JSON, the seconds between the first and the last call of each problem, and its steps.
"""

import json
import pickle
import runpy
import sys
import time
from typing import Any

from openai.resources.chat.completions import Completions

_create = Completions.create
_spans: list[float] = []


def _greedy(self: Completions, **asked: Any) -> Any:
    _spans.append(time.perf_counter())
    said = _create(self, **{**asked, "temperature": 0})
    _spans.append(time.perf_counter())
    return said


def main() -> None:
    """Run the script on each problem."""
    script, problems, budget = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    Completions.create = _greedy  # type: ignore[method-assign,assignment]
    seconds, steps = [], []
    for number in range(problems):
        _spans.clear()
        options = {"dataset_name": "math", "problem_id": number, "token_budget": budget, "output_dir": "out"}
        sys.argv = [script, *(f"--{name}={value}" for name, value in options.items())]
        runpy.run_path(script)
        seconds.append(_spans[-1] - _spans[0])
        with open(f"out/{number}/0.pickle", "rb") as file:
            steps.append([each["step_str"] for each in pickle.load(file)])
    print(json.dumps({"seconds": seconds, "steps": steps}))


if __name__ == "__main__":
    main()
