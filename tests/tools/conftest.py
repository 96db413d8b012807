"""The tools are scripts beside one another, which import each other by their names."""

import sys

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
