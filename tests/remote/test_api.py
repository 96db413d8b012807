"""`pipeline.solve` over URLs."""

import pytest

import pipeline
from pipeline.errors import StoreError, UsageError
from tests.support.commands import pipeline as command
from tests.support.object_stores import BUCKET, ObjectServer
from tests.support.paths import SIM
from tests.support.runs import write_problems


@pytest.mark.slow
def test_problems_and_the_run_folder_are_urls(store: ObjectServer, prefix: str, tmp_path: pytest.TempPathFactory) -> None:
    store.write(f"{prefix}/problems.jsonl", write_problems(tmp_path).read_bytes())  # type: ignore[arg-type]
    problems, run = f"s3://{BUCKET}/{prefix}/problems.jsonl", f"s3://{BUCKET}/{prefix}/run"
    found = pipeline.solve("speccot", problems, engines=SIM, output=run)
    assert len(found) == 12
    assert found.to_arrow("calls").num_rows > 12
    assert (found.run.input.file, found.run.options["input"]) == (problems, problems)
    assert store.status(f"{prefix}/run") == "finished"
    again = pipeline.solve("speccot", problems, engines=SIM, output=run, resume=True)
    assert again.chains == found.chains
    assert command("runs", "check", run).returncode == 0
    with pytest.raises(UsageError, match=f"{run}: already contains a run"):
        pipeline.solve("speccot", problems, engines=SIM, output=run)


def test_what_is_wrong_with_a_url_is_raised(store: ObjectServer, prefix: str) -> None:
    with pytest.raises(StoreError, match="there is no bucket 'nobody'"):
        pipeline.solve("speccot", "s3://nobody/x.csv", engines=SIM)
    with pytest.raises(UsageError, match="unknown scheme 'ftp'"):
        pipeline.solve("speccot", [{"problem": "why?"}], engines=SIM, output="ftp://host/run")
    assert not store.names(prefix)
