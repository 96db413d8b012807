"""inspect_ai as a client, by the Python of `.venv/clients`: a number of problems and a folder for its log enter, the score is printed.

The server's URL is that of the variable LOCAL_BASE_URL.
"""

import sys
from pathlib import Path

import pyarrow.parquet as pq
from inspect_ai import Task, eval, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import pattern

TEST_SET = Path(__file__).parents[3] / "datasets/arith/test.parquet"


@task
def arith() -> Task:
    """The bundled test set."""
    rows = pq.read_table(TEST_SET).to_pylist()
    return Task(
        dataset=MemoryDataset([Sample(row["problem"], target=row["answer"]) for row in rows]), scorer=pattern(r"\\boxed\{([^}]*)\}")
    )


if __name__ == "__main__":
    problems, logs = sys.argv[1:]
    [log] = eval(
        arith(), model="openai-api/local/speccot", max_connections=int(problems), limit=int(problems), log_dir=logs, display="none"
    )
    assert log.results is not None, log.error
    print(log.results.scores[0].metrics["accuracy"].value)
