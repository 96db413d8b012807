"""Every mutant of `tools/mutants.toml` still finds the line that it breaks."""

import tomllib

from tests.support.paths import ROOT


def test_each_mutant_stands_in_its_file_once() -> None:
    mutants = tomllib.loads((ROOT / "tools/mutants.toml").read_text())["mutant"]
    assert len(mutants) >= 40
    times = {each["behaviour"]: (ROOT / each["file"]).read_text().count(each["old"]) for each in mutants}
    assert {behaviour: count for behaviour, count in times.items() if count != 1} == {}
