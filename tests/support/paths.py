"""Where tests find what the tree holds."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
"""Reference data that is no part of the repository; tests that need it skip where it is not."""
MODELS = ROOT / "pipeline/models"
SIM = ROOT / "graphs/engines/sim-2xh100.yaml"
TEST_SET = ROOT / "datasets/arith/test.parquet"
