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

from pipeline.show.pages import view_app
from pipeline.show.sections import SIMULATED
from pipeline.show.shelf import Shelf
from pipeline.store.folder import hold
from pipeline.store.rows import ChainRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, write_part
from tests.support.rows import blank
from tests.support.shown_runs import HOSTILE


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return TestClient(view_app(Shelf(runs)), base_url="http://127.0.0.1:8642")


def page(client: TestClient, path: str, status: int = 200, **params: Any) -> str:
    answer = client.get(path, params=params)
    assert answer.status_code == status, answer.text
    return answer.text


def cells(html: str, column: str) -> list[str]:
    """What stands in a column of the list of runs."""
    html = html.rpartition('class="runs"')[2]
    [names] = re.findall(r"<thead><tr>(.*?)</tr></thead>", html, re.S)
    place = [re.sub(r"<.*?>", "", name) for name in re.findall(r"<th[ >].*?</th>", names, re.S)].index(column)
    rows = re.findall(r"<tr>(.*?)</tr>", html.split("<tbody", 1)[1].split("</tbody>", 1)[0], re.S)
    texts = [[re.sub(r"\s*<.*?>\s*", " ", cell).strip() for cell in re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.S)] for row in rows]
    return [row[place] for row in texts if place < len(row)]


def listed(html: str, part: str = "problem") -> list[str]:
    """The ids, or the text of another part, of the problems in the list of a run's page."""
    begins = '<span class="problem"><small>' if part == "problem" else f'<span class="{part}">'
    return [unescape(each.partition("<")[0]) for each in html.split(begins)[1:]]


def chains_of(runs: Path, name: str = "speccot") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(runs / name / "chains").to_pylist()
    return rows


def test_every_run_is_listed_and_one_that_cannot_be_read_says_why(client: TestClient) -> None:
    html = page(client, "/")
    names = ["alone", "damaged", "real/made up", "speccot", "sweep/&lt;b&gt;run"]
    assert sorted(" ".join(each.split()[: 3 if "made" in each else 2]) for each in cells(html, "run")) == [
        *(f"{name} finished" for name in names),
        "unreadable damaged",
    ]
    assert "unreadable/run.json" in html
    assert "damaged" in page(client, "/run", 400, run="damaged")
    assert html.count('<td colspan="7" class="bad">') == 1
    assert "<b>run" not in html


def test_a_run_is_set_against_its_own_baseline(runs: Path, tmp_path: Path) -> None:
    for name, of in (("mine", "speccot"), ("mine-target", "alone")):
        shutil.copytree(runs / of, tmp_path / name)
    rates = [RunFile.read(tmp_path / name).wall_time_s or 0 for name in ("mine-target", "mine")]
    client = TestClient(view_app(Shelf(tmp_path)), base_url="http://localhost")
    assert sorted(cells(page(client, "/"), "speed-up")) == ["-", f"{rates[0] / rates[1]:.2f}x"]


def test_chains_that_ended_are_drawn_over_time(client: TestClient) -> None:
    answer = client.get("/spark", params={"run": "speccot"})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.count("V10000") >= 2
    assert 'd=""' not in answer.text


def test_simulated_answers_are_no_wrong_ones(client: TestClient) -> None:
    html = page(client, "/run", run="real/made up")
    assert set(listed(html, "badge simulated")) == {"simulated"}
    assert "answers are simulated" in html
    chain = page(client, "/chain", run="real/made up", chain="q0#0")
    assert f">{SIMULATED.partition(':')[0]}" in chain
    assert '<span class="badge simulated">' in chain
    accuracy = cells(page(client, "/"), "accuracy")
    assert "- simulated" in accuracy
    assert [text for text in accuracy if re.fullmatch(r"\d+\.\d% simulated", text)], "some answers of the others are right"


@pytest.mark.parametrize("order", ["rejected", "longest", "slowest"])
def test_chains_are_ordered(client: TestClient, runs: Path, order: str) -> None:
    column = {"rejected": "fallback_steps", "longest": "thought_tokens", "slowest": "chain_time_s"}[order]
    rows = sorted(chains_of(runs), key=lambda row: (-row[column], row["input_row"]))
    assert listed(page(client, "/run", run="speccot", order=order)) == [row["chain_id"] for row in rows]


def test_chains_are_found_by_verdict_problem_answer_and_id(client: TestClient, runs: Path) -> None:
    rows = chains_of(runs)
    wrong = {row["chain_id"] for row in rows if row["correct"] is False}
    html = page(client, "/run", run="speccot", verdict="wrong")
    assert set(listed(html)) == wrong
    assert f"wrong {len(wrong)}" in html
    assert listed(page(client, "/run", run="speccot", verdict="failed")) == ["(row 21)#0"]
    assert listed(page(client, "/run", run="speccot", search="IS 7 +")) == ["p7#0"]
    assert "p3#0" in listed(page(client, "/run", run="speccot", search="P3#"))
    answer = next(row["answer"] for row in rows if row["answer"])
    found = listed(page(client, "/run", run="speccot", search=answer), "said")
    assert answer in found
    assert len(found) < len(rows)
    assert "No chain is like that" in page(client, "/run", run="speccot", search="100%_")


def test_a_chain_has_its_steps_and_its_neighbours_in_the_list(client: TestClient, runs: Path) -> None:
    rows = sorted(chains_of(runs), key=lambda row: (-row["fallback_steps"], row["input_row"]))
    names = [row["chain_id"] for row in rows]
    html = page(client, "/chain", run="speccot", chain=names[1], order="rejected")
    links = {rel: parse_qs(urlsplit(url.replace("&amp;", "&")).query) for rel, url in re.findall(r'rel="(prev|next)" href="(.*?)"', html)}
    assert {rel: found["chain"][0] for rel, found in links.items()} == {"prev": names[0], "next": names[2]}
    assert links["next"]["order"] == ["rejected"]
    steps = [row for row in pq.read_table(runs / "speccot" / "steps").to_pylist() if row["chain_id"] == names[1]]
    texts = re.findall(r'<div class="step (\w+)".*?<div class="text">(.*?)</div>', html, re.S)
    assert [(kind, unescape(text)) for kind, text in texts] == [(row["decision"], row["step_text"].strip()) for row in steps]
    right = next(row["chain_id"] for row in rows if row["correct"])
    elsewhere = page(client, "/chain", run="speccot", chain=right, verdict="wrong")
    assert not re.findall(r"\d+ of \d+ wrong", elsewhere), "it is not in that list"


def test_figures_of_a_run(client: TestClient) -> None:
    assert "of the drafted ones were discarded" in page(client, "/figures", run="speccot")


def test_hostile_names_lead_to_their_chains(client: TestClient) -> None:
    html = page(client, "/run", run="sweep/<b>run")
    assert "<img" not in html
    assert "<script>window" not in html
    assert listed(html)
    assert "\\u202e" in page(client, "/chain", run="sweep/<b>run", chain=f"p3#0{HOSTILE}")


def test_links_and_forms_send_names_as_they_are(runs: Path, tmp_path: Path) -> None:
    names = ["plain", "esc\x1b[2J", "turned\u202e", os.fsdecode(b"caf\xe9")]
    for name in names:
        shutil.copytree(runs / "alone", tmp_path / name)
    client = TestClient(view_app(Shelf(tmp_path)), base_url="http://localhost")
    links = [parse_qs(urlsplit(unescape(each)).query)["run"][0] for each in re.findall(r'href="(/run.*?)"', page(client, "/"))]
    assert sorted(links) == sorted([*names[:3], "caf\\udce9"])
    for value in links:
        said = page(client, "/run", 200 if value in names else 400, run=value)
        if value in names:
            assert [unescape(each) for each in re.findall(r'name="run" value="(.*?)"', said)] == [value]
        else:
            assert "its path is not UTF-8; rename the folder" in said


@pytest.mark.parametrize(
    ("path", "params", "said"),
    [
        ("/run", {"run": "specot"}, "no run &#39;specot&#39;; did you mean `speccot`?"),
        ("/run", {"run": "../runs/speccot"}, "no run"),
        ("/run", {}, "the parameter `run` is missing"),
        ("/chain", {"run": "speccot", "chain": "p99#0"}, "no chain &#39;p99#0&#39; that has ended"),
        ("/chain", {"run": "unreadable", "chain": "p3#0"}, "is not a run.json of this program"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(client: TestClient, path: str, params: dict[str, str], said: str) -> None:
    assert said in page(client, path, 400, **params)


def test_a_page_for_another_host_is_refused_and_each_has_its_policy(client: TestClient) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8642"):
        assert client.get("/", headers={"Host": host}).status_code == 400
    for host in ("localhost:1234", "127.0.0.1", "[::1]:8642"):
        assert client.get("/", headers={"Host": host}).status_code == 200
    answer = client.get("/", headers={"Host": "localhost:1234"})
    assert "default-src 'none'; script-src 'sha256-" in answer.headers["Content-Security-Policy"]
    assert client.get("/static/../app.py").status_code == client.get("/nothing").status_code == 404
    assert client.post("/").status_code == 405


@pytest.fixture
def store(tmp_path: Path, runs: Path) -> RunStore:
    """The store of a run that has begun, without a row."""
    (tmp_path / "live").mkdir()
    shutil.copy(runs / "speccot" / "run.json", tmp_path / "live")
    return RunStore(tmp_path / "live")


def test_a_run_that_goes_on_is_read_as_it_is_now(store: RunStore, tmp_path: Path) -> None:
    client = TestClient(view_app(Shelf(tmp_path)), base_url="http://localhost")
    for count in (1, 2):
        store.append("chains", [blank(ChainRow, chain_id=f"p{count}#0", stop_reason="end", input_row=count)])
        assert len(listed(page(client, "/run", run="live"))) == count
    store.close()


def test_many_chains_have_pages(store: RunStore) -> None:
    store.append("chains", [blank(ChainRow, chain_id=f"p{i}#0", stop_reason="end", input_row=i) for i in range(1, 121)])
    store.close()
    client = TestClient(view_app(Shelf(store.folder)), base_url="http://localhost")
    assert listed(page(client, "/run", run="live", page=2))[0] == "p51#0"
    last = page(client, "/run", run="live", page=99)
    assert listed(last) == [f"p{i}#0" for i in range(101, 121)]
    assert "101 to 120 of 120" in last


def test_samples_are_in_their_order(store: RunStore) -> None:
    rows = [blank(ChainRow, chain_id=f"p1#{i}", sample_index=i, stop_reason="end", input_row=1) for i in range(12)]
    store.append("chains", rows)
    store.close()
    client = TestClient(view_app(Shelf(store.folder)), base_url="http://localhost")
    samples = page(client, "/chain", run="live", chain="p1#0").split('aria-label="samples"')[1].partition("</nav>")[0]
    assert re.findall(r"p1#\d+", re.sub(r'href=".*?"', "", samples)) == [row.chain_id for row in rows]


def test_a_run_that_was_killed_does_not_say_that_it_goes_on(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "alone", tmp_path / "alone")
    structs.replace(RunFile.read(runs / "alone"), status="running").write(tmp_path / "alone")
    html = page(TestClient(view_app(Shelf(tmp_path)), base_url="http://localhost"), "/run", run="alone")
    assert "This run is killed: figures" in html
    assert "This run is running" not in html


def test_the_list_follows_its_runs(runs: Path, tmp_path: Path) -> None:
    client, folder = TestClient(view_app(Shelf(tmp_path)), base_url="http://localhost"), tmp_path / "alone"
    shutil.copytree(runs / "alone", folder)
    run = RunFile.read(folder)

    def state() -> list[str]:
        return [each.split()[1] for each in cells(page(client, "/"), "run")]

    assert (state(), state()) == (["finished"], ["finished"])
    with hold(folder):
        assert state() == ["running"]
    assert state() == ["finished"]
    structs.replace(run, status="interrupted").write(folder)
    assert state() == ["interrupted"]
    shutil.rmtree(folder)
    assert state() == []


@pytest.mark.slow
def test_a_run_of_100_000_chains_opens_in_two_seconds(runs: Path, tmp_path: Path) -> None:
    """Processor time is measured, which is longer than the wait on an idle machine and does not depend on what else runs."""
    folder = tmp_path / "long"
    folder.mkdir()
    shutil.copy(runs / "speccot" / "run.json", folder)
    (folder / "chains").mkdir()
    for table, file, counts in (("chains", "chains/part-00000.parquet", ("steps", "calls")), ("problems.parquet", "problems.parquet", ())):
        rows = pq.read_table(runs / "speccot" / table)
        many = pa.concat_tables([rows] * (100_000 // len(rows) + 1)).slice(0, 100_000).combine_chunks()
        for name in ("input_row", *counts):
            values = pa.array(range(1, 100_001) if name == "input_row" else [0] * 100_000, pa.int64())
            many = many.set_column(many.schema.get_field_index(name), rows.schema.field(name), values)
        write_part(folder / file, many)
    client = TestClient(view_app(Shelf(folder)), base_url="http://localhost")
    page(client, "/run", run="long", search="nothing is like this")  # what is loaded once, modules and templates, is loaded
    for asked in ({}, {"order": "rejected"}, {"search": "is 7 +"}, {"page": 1500}):
        began = time.process_time()
        html = page(TestClient(view_app(Shelf(folder)), base_url="http://localhost"), "/run", run="long", **asked)
        assert time.process_time() - began < 2, asked
        assert len(listed(html)) == 50
