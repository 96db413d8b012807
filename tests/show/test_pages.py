"""The pages of `pipeline view` as a browser gets them: what they list, find and refuse."""

import os
import re
import shutil
import time
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from starlette.testclient import TestClient

from pipeline.show import pages
from pipeline.show.report import report
from pipeline.show.sections import SIMULATED
from pipeline.store.folder import hold
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, write_part
from tests.support.rows import blank
from tests.support.runs import rows


def client_of(folder: Path) -> TestClient:
    return TestClient(pages.view_app(folder), base_url="http://127.0.0.1:8642")


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return client_of(runs)


def page(client: TestClient, path: str, status: int = 200, **params: Any) -> str:
    answer = client.get(path, params=params)
    assert answer.status_code == status, answer.text
    return answer.text


def cells(client: TestClient, column: str) -> list[str]:
    """What stands in a column of the list of runs."""
    html = page(client, "/").rpartition('class="runs"')[2]
    place = re.findall(r'<th scope="col".*?>(.*?)</th>', html).index(column)
    rows = [re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", html.partition("<tbody")[2], re.S)]
    return [re.sub(r"\s*<.*?>\s*", " ", row[place]).strip() for row in rows if place < len(row)]


def listed(html: str, part: str = "problem") -> list[str]:
    """The ids, or the text of another part, of the problems in the list of a run's page."""
    begins = '<span class="problem"><small>' if part == "problem" else f'<span class="{part}">'
    return [unescape(each.partition("<")[0]) for each in html.split(begins)[1:]]


def test_every_run_is_listed_and_one_that_cannot_be_read_says_why(client: TestClient) -> None:
    names = ["alone", "damaged", "real/made up", "speccot", "sweep/&lt;b&gt;run"]
    found = sorted(" ".join(each.split()[: 3 if "made" in each else 2]) for each in cells(client, "run"))
    assert found == [*(f"{name} finished" for name in names), "unreadable damaged"]
    html = page(client, "/")
    assert "unreadable/run.json" in html
    assert html.count('<td colspan="7" class="bad">') == 1


def test_a_run_is_set_against_its_own_baseline(runs: Path, tmp_path: Path) -> None:
    for name, of in (("mine", "speccot"), ("mine-target", "alone")):
        shutil.copytree(runs / of, tmp_path / name)
    mine, target = (RunFile.read(tmp_path / name).wall_time_s or 0 for name in ("mine", "mine-target"))
    client = client_of(tmp_path)
    assert sorted(cells(client, "speed-up")) == ["-", f"{target / mine:.2f}x"]
    assert all(re.fullmatch(r"[\d.]+ simulated", each) for each in cells(client, "problems/s"))


def test_chains_that_ended_over_time_are_a_picture(client: TestClient) -> None:
    answer = client.get("/spark", params={"run": "speccot"})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.count("V10000") >= 2


def test_figures_of_a_long_run_come_after_its_problems(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "AT_ONCE", 9)
    for asked in ({}, {"figures": "yes"}):
        html = page(client, "/run", run="speccot", **asked)
        assert ("of the drafted ones were discarded" in html, "<body data-active" in html) == (bool(asked), not asked)


def test_simulated_answers_are_no_wrong_ones(client: TestClient) -> None:
    html = page(client, "/run", run="real/made up")
    assert set(listed(html, "badge simulated")) == {"simulated"}
    assert "answers are simulated" in html
    chain = page(client, "/chain", run="real/made up", chain="q0#0")
    assert f">{SIMULATED.partition(':')[0]}" in chain
    assert '<span class="badge simulated">' in chain
    accuracy = cells(client, "accuracy")
    assert "- simulated" in accuracy
    assert [text for text in accuracy if re.fullmatch(r"\d+\.\d% simulated", text)], "some answers of the others are right"


def test_chains_are_ordered_and_found_by_verdict_problem_answer_and_id(client: TestClient, runs: Path) -> None:
    chains = rows(runs / "speccot", "chains")

    def found(part: str = "problem", **asked: Any) -> list[str]:
        return listed(page(client, "/run", run="speccot", **asked), part)

    for order, column in {"rejected": "fallback_steps", "longest": "thought_tokens", "slowest": "chain_time_s"}.items():
        ordered = sorted(chains, key=lambda row: (-row[column], row["input_row"]))
        assert found(order=order) == [row["chain_id"] for row in ordered]
    assert set(found(verdict="wrong")) == {row["chain_id"] for row in chains if row["correct"] is False}
    assert found(verdict="failed") == ["(row 21)#0"]
    assert found(search="IS 7 +") == ["p7#0"]
    assert "p3#0" in found(search="P3#")
    answer = next(row["answer"] for row in chains if row["answer"])
    said = found("said", search=answer)
    assert answer in said
    assert len(said) < len(chains)
    assert "No chain is like that" in page(client, "/run", run="speccot", search="100%_")


def test_a_chain_has_its_steps_and_its_neighbours_in_the_list(client: TestClient, runs: Path) -> None:
    chains = sorted(rows(runs / "speccot", "chains"), key=lambda row: (-row["fallback_steps"], row["input_row"]))
    names = [row["chain_id"] for row in chains]
    html = page(client, "/chain", run="speccot", chain=names[1], order="rejected")
    links = {rel: parse_qs(urlsplit(unescape(url)).query) for rel, url in re.findall(r'rel="(prev|next)" href="(.*?)"', html)}
    assert {rel: (found["chain"], found["order"]) for rel, found in links.items()} == {
        "prev": ([names[0]], ["rejected"]),
        "next": ([names[2]], ["rejected"]),
    }
    steps = [row for row in rows(runs / "speccot", "steps") if row["chain_id"] == names[1]]
    texts = re.findall(r'<div class="step (\w+)".*?<div class="text">(.*?)</div>', html, re.S)
    assert [(kind, unescape(text)) for kind, text in texts] == [(row["decision"], row["step_text"].strip()) for row in steps]
    right = next(row["chain_id"] for row in chains if row["correct"])
    elsewhere = page(client, "/chain", run="speccot", chain=right, verdict="wrong")
    assert not re.findall(r"\d+ of \d+ wrong", elsewhere), "it is not in that list"


def test_links_and_forms_send_names_as_they_are(runs: Path, tmp_path: Path) -> None:
    names = ["plain", "esc\x1b[2J", "turned\u202e"]
    for name in (*names, os.fsdecode(b"caf\xe9")):
        shutil.copytree(runs / "alone", tmp_path / name)
    client = client_of(tmp_path)
    links = [parse_qs(urlsplit(unescape(each)).query)["run"][0] for each in re.findall(r'href="(/run.*?)"', page(client, "/"))]
    assert sorted(links) == sorted([*names, "caf\\udce9"])
    for name in names:
        assert re.findall(r'name="run" value="(.*?)"', page(client, "/run", run=name)) == [name]
    assert "its path is not UTF-8; rename the folder" in page(client, "/run", 400, run="caf\\udce9")


@pytest.mark.parametrize(
    ("path", "params", "said"),
    [
        ("/run", {"run": "specot"}, "no run &#39;specot&#39;; did you mean <code>speccot</code>?"),
        ("/run", {"run": "../runs/speccot"}, "no run"),
        ("/run", {}, "the parameter <code>run</code> is missing"),
        ("/run", {"run": "damaged"}, "damaged"),
        ("/chain", {"run": "speccot", "chain": "p99#0"}, "no chain &#39;p99#0&#39; that has ended"),
        ("/chain", {"run": "unreadable", "chain": "p3#0"}, "is not a run.json of this program"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(client: TestClient, path: str, params: dict[str, str], said: str) -> None:
    assert said in page(client, path, 400, **params)


def test_a_page_for_another_host_is_refused_and_each_has_its_policy(client: TestClient) -> None:
    found = [client.get("/", headers={"Host": host}).status_code for host in ("evil.example:8642", "localhost:1234")]
    assert found == [400, 200]
    assert "default-src 'none'; script-src 'sha256-" in client.get("/").headers["Content-Security-Policy"]
    assert (client.get("/nothing").status_code, client.post("/").status_code) == (404, 405)


def test_many_chains_have_pages_and_a_small_file(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    shutil.copy(runs / "speccot" / "run.json", folder)
    store = RunStore(folder)
    store.append("chains", [blank(ChainRow, chain_id=f"p{i}#0", stop_reason="end", input_row=i) for i in range(1, 501)])
    store.close()
    client = client_of(folder)
    assert listed(page(client, "/run", run="live", page=2))[0] == "p51#0"
    last = page(client, "/run", run="live", page=99)
    assert listed(last) == [f"p{i}#0" for i in range(451, 501)]
    assert "451 to 500 of 500" in last
    assert len(listed(html := report([folder]))) == 500
    assert len(html) < 1e6


def test_the_list_follows_its_runs(runs: Path, tmp_path: Path) -> None:
    client, folder = client_of(tmp_path), tmp_path / "alone"
    shutil.copytree(runs / "alone", folder)
    run = RunFile.read(folder)

    def state() -> list[str]:
        return [each.split()[1] for each in cells(client, "run")]

    assert (state(), state()) == (["finished"], ["finished"])
    with hold(folder):
        assert state() == ["running"]
    assert state() == ["finished"]
    structs.replace(run, status="interrupted").write(folder)
    assert state() == ["interrupted"]
    structs.replace(run, status="running").write(folder)
    assert "This run is killed: figures" in page(client, "/run", run="alone"), "nobody is at work there"
    shutil.rmtree(folder)
    assert state() == []


@pytest.mark.slow
def test_a_run_of_100_000_chains_opens_in_two_seconds(runs: Path, tmp_path: Path) -> None:
    """Processor time is measured, which does not depend on what else runs."""
    folder = tmp_path / "long"
    folder.mkdir()
    shutil.copy(runs / "speccot" / "run.json", folder)
    (folder / "chains").mkdir()
    for table, file, counts in (("chains", "chains/part-00000.parquet", ("steps", "calls")), ("problems.parquet", "problems.parquet", ())):
        few = pq.read_table(runs / "speccot" / table)
        many = pa.concat_tables([few] * (100_000 // len(few) + 1)).slice(0, 100_000).combine_chunks()
        for name in ("input_row", *counts):
            values = pa.array(range(1, 100_001) if name == "input_row" else [0] * 100_000, pa.int64())
            many = many.set_column(many.schema.get_field_index(name), few.schema.field(name), values)
        write_part(folder / file, many)
    page(client_of(folder), "/run", run="long", search="nothing is like this")  # what is loaded once, modules and templates, is loaded
    for asked in ({}, {"order": "rejected"}, {"search": "is 7 +"}, {"page": 1500}):
        began = time.process_time()
        html = page(client_of(folder), "/run", run="long", **asked)
        assert time.process_time() - began < 2, asked
        assert len(listed(html)) == 50
