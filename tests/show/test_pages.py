"""Pages of any sections, and those of `pipeline view` as a browser gets them: what they list, find and refuse."""

import os
import re
import shutil
import time
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from pipeline.analysis.tables import Table
from pipeline.show import pages
from pipeline.show.page import numeric, prose
from pipeline.show.page import page as made
from pipeline.show.plot import Chart, ChartAxis, Mark, Panel
from pipeline.show.problems import AskedChains, chain_page
from pipeline.show.report import report
from pipeline.show.sections import SIMULATED, Section
from pipeline.store.folder import hold
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.store.store import write_part
from tests.support.run_files import write_run_json
from tests.support.runs import rows

TAG = "</script><i>"


def test_sections_of_any_kind_become_one_page_on_which_only_our_own_script_may_run() -> None:
    mark = Mark(kind="spans", name=TAG, hue="blue", x=[0], until=[1], y=[0])
    panel = Panel(y=ChartAxis(), marks=[mark], rows=[f"{TAG}'\""], height=321)
    charts = [Chart(title="A chart", x=ChartAxis(title=TAG), panels=[panel])]
    tables = [Table("A table", ("name", "number"), (("<x>", "12"),), "its note")]
    one = Section(title="One <b>", notices=["Careful & slow"], text=["Some text."], charts=charts, tables=tables)
    html = made("run.html", "Title <1>", first=[one, Section(title="Two", folded=True)], runs=[], asked=AskedChains())
    for part in (
        "<title>Title &lt;1&gt;</title>",
        "<h2>One &lt;b&gt;</h2>",
        "<summary>Two</summary>",
        '<p class="notice">Careful &amp; slow</p>',
        '<th scope="row">&lt;x&gt;</th><td class="number">12</td>',
        'style="height: 321px" data-rows="[&#34;&lt;/script&gt;&lt;i&gt;&#39;\\&#34;&#34;]"',
        'd="M0 10000H10000"',
    ):
        assert part in html
    assert ("<i>" in html, html.count("<script")) == (False, 1), "the script is ours"
    policy = unescape(html.partition('Content-Security-Policy" content="')[2].partition('"')[0])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]


def test_columns_of_numbers_are_known_and_backticks_are_code() -> None:
    cells = (("a", "1,000", "-", "baseline", "x 1"), ("b", "-0.5%", "-", "+3", "2"))
    assert numeric(Table("", ("",) * 5, cells)) == [False, True, True, True, False]
    assert numeric(Table("", ("", ""), ())) == [False, False]
    assert prose("a `b<i>` <b>\u202e") == "a <code>b&lt;i&gt;</code> &lt;b&gt;\\u202e"


def client_of(folder: Path) -> TestClient:
    return TestClient(pages.view_app(folder), base_url="http://127.0.0.1:8642")


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return client_of(runs)


def page(client: TestClient, path: str, status: int = 200, **params: Any) -> str:
    answer = client.get(path, params=params)
    assert answer.status_code == status, answer.text
    return answer.text


def text(html: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", html))).strip()


def lines(client: TestClient) -> list[str]:
    """The rows of the list of runs, in the order of their names."""
    return sorted(map(text, re.findall(r"<tr>(.*?)</tr>", page(client, "/").partition("<tbody")[2], re.S)))


def listed(html: str) -> list[str]:
    """The ids of the problems in the list of a run's page."""
    return re.findall(r'<span class="problem"><small>(.*?)<', html)


def test_every_run_is_listed_with_its_state_accuracy_speed_up_and_a_picture(client: TestClient, runs: Path, tmp_path: Path) -> None:
    found = lines(client)
    assert [each.partition(" finished ")[0] for each in found[:-1]] == ["alone", "damaged", "real/made up", "speccot", "sweep/<b>run"]
    assert found[-1].startswith(f"unreadable damaged {runs}/unreadable/run.json")
    assert re.search(r" - simulated [\d.]+ simulated - ", found[2]), "answers that are made up"
    assert re.search(r" \d+\.\d% simulated [\d.]+ simulated - ", found[3]), "some of the others are right"
    for name, of in (("mine", "speccot"), ("mine-target", "alone")):
        shutil.copytree(runs / of, tmp_path / name)
    mine, target = (RunFile.read(tmp_path / name).wall_time_s or 0 for name in ("mine", "mine-target"))
    assert [f" {target / mine:.2f}x " in each for each in lines(client_of(tmp_path))] == [True, False]
    answer = client.get("/spark", params={"run": "speccot"})
    assert (answer.headers["content-type"], answer.text.count("V10000") >= 2) == ("image/svg+xml", True)


def test_figures_of_a_long_run_come_after_its_problems(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "AT_ONCE", 9)
    for asked in ({}, {"figures": "yes"}):
        html = page(client, "/run", run="speccot", **asked)
        assert ("of the drafted ones were discarded" in html, "<body data-active" in html) == (bool(asked), not asked)


def test_simulated_answers_are_no_wrong_ones(client: TestClient) -> None:
    html = page(client, "/run", run="real/made up")
    assert set(re.findall(r'<span class="badge (\w+)">', html)) == {"finished", "simulated"}
    assert "answers are simulated" in html
    said = page(client, "/chain", run="real/made up", chain="q0#0")
    assert (SIMULATED in said, '<span class="badge simulated">' in said) == (True, True)


def test_chains_are_ordered_and_found_by_verdict_problem_answer_and_id(client: TestClient, ran: Path) -> None:
    chains = rows(ran, "chains")
    answer = next(row["answer"] for row in chains if row["answer"])
    with Query(ran) as db:

        def found(**asked: Any) -> list[str]:
            return [each.chain_id for each in chain_page(db, AskedChains(**asked), made_up=False).rows]

        for order, column in {"rejected": "fallback_steps", "longest": "thought_tokens", "slowest": "chain_time_s"}.items():
            ordered = sorted(chains, key=lambda row: (-row[column], row["input_row"]))
            assert found(order=order) == [row["chain_id"] for row in ordered]
        assert set(found(verdict="wrong")) == {row["chain_id"] for row in chains if row["correct"] is False}
        assert (found(verdict="failed"), found(search="IS 7 +"), found(search="100%_")) == (["(row 21)#0"], ["p7#0"], [])
        assert "p3#0" in found(search="P3#")
        assert {row["chain_id"] for row in chains if row["answer"] == answer} <= {*found(search=answer)} < {*found()}
        asked = {"order": "longest", "verdict": "wrong", "search": "is 1"}
        assert listed(page(client, "/run", run="speccot", **asked)) == found(**asked)
    assert "No chain is like that" in page(client, "/run", run="speccot", search="100%_")


def test_a_chain_has_its_steps_and_its_neighbours_in_the_list(client: TestClient, ran: Path) -> None:
    chains = sorted(rows(ran, "chains"), key=lambda row: (-row["fallback_steps"], row["input_row"]))
    before, name, after = (row["chain_id"] for row in chains[:3])
    html = page(client, "/chain", run="speccot", chain=name, order="rejected")
    links = {rel: parse_qs(urlsplit(unescape(url)).query) for rel, url in re.findall(r'rel="(prev|next)" href="(.*?)"', html)}
    asked = {"run": ["speccot"], "order": ["rejected"]}
    assert links == {"prev": asked | {"chain": [before]}, "next": asked | {"chain": [after]}}
    texts = re.findall(r'<div class="step (\w+)".*?<div class="text">(.*?)</div>', html, re.S)
    steps = [(row["decision"], row["step_text"].strip()) for row in rows(ran, "steps") if row["chain_id"] == name]
    assert [(kind, unescape(said)) for kind, said in texts] == steps
    right = next(row["chain_id"] for row in chains if row["correct"])
    assert not re.search(r"\d+ of \d+ wrong", page(client, "/chain", run="speccot", chain=right, verdict="wrong")), "it is not in that list"


def test_links_and_forms_send_names_as_they_are(runs: Path, tmp_path: Path) -> None:
    names = ["plain", "esc\x1b[2J", "turned\u202e"]
    for name in names:
        write_run_json(tmp_path / name)
    shutil.copytree(runs / "alone", tmp_path / os.fsdecode(b"caf\xe9"))
    client = client_of(tmp_path)
    links = [parse_qs(urlsplit(unescape(each)).query)["run"][0] for each in re.findall(r'href="(/run.*?)"', page(client, "/"))]
    assert sorted(links) == sorted([*names, "caf\\udce9"])
    for name in names:
        assert re.findall(r'name="run" value="(.*?)"', page(client, "/run", run=name)) == [name]
    assert "its path is not UTF-8; rename the folder" in page(client, "/run", 400, run="caf\\udce9")


def test_what_is_not_there_or_asked_by_another_host_is_refused_in_a_sentence(client: TestClient) -> None:
    for path, params, said in (
        ("/run", {"run": "specot"}, "no run 'specot'; did you mean speccot ?"),
        ("/run", {"run": "../runs/speccot"}, "no run"),
        ("/run", {}, "the parameter run is missing"),
        ("/run", {"run": "damaged"}, "damaged"),
        ("/chain", {"run": "speccot", "chain": "p99#0"}, "no chain 'p99#0' that has ended"),
        ("/chain", {"run": "unreadable", "chain": "p3#0"}, "is not a run.json of this program"),
    ):
        assert said in text(page(client, path, 400, **params))
    found = [client.get("/", headers={"Host": host}).status_code for host in ("evil.example:8642", "localhost:1234")]
    assert (found, client.get("/nothing").status_code, client.post("/").status_code) == ([400, 200], 404, 405)
    assert "default-src 'none'; script-src 'sha256-" in client.get("/").headers["Content-Security-Policy"]


def test_the_list_follows_its_runs(tmp_path: Path) -> None:
    client, folder = client_of(tmp_path), tmp_path / "run"

    def state(status: str) -> list[str]:
        write_run_json(folder, status=status)
        return [each.split()[1] for each in lines(client)]

    assert (state("finished"), state("finished")) == (["finished"], ["finished"])
    with hold(folder):
        assert state("finished") == ["running"]
    assert (state("finished"), state("interrupted"), state("running")) == (["finished"], ["interrupted"], ["killed"])
    assert "This run is killed: figures" in page(client, "/run", run="run"), "nobody is at work there"
    shutil.rmtree(folder)
    assert lines(client) == []


@pytest.mark.slow
def test_a_run_of_100_000_chains_has_pages_that_open_in_two_seconds_and_a_small_file(ran: Path, tmp_path: Path) -> None:
    """Processor time is measured, which does not depend on what else runs."""
    folder, count = tmp_path / "long", 100_000
    (folder / "chains").mkdir(parents=True)
    shutil.copy(ran / "run.json", folder)
    numbers = range(1, count + 1)
    columns = {"input_row": numbers, "chain_id": [f"p{number}#0" for number in numbers], "steps": [0] * count, "calls": [0] * count}
    for file in ("chains/part-00000.parquet", "problems.parquet"):
        few = pq.read_table(ran / Path(file).parts[0])
        many = few.take(pa.array(np.arange(count) % len(few)))
        fields = {
            name: pa.array(columns[name], few.schema.field(name).type) if name in columns else many[name] for name in few.column_names
        }
        write_part(folder / file, pa.table(fields, few.schema))
    rejected = pq.read_table(folder / "chains")["fallback_steps"].to_numpy()
    page(client_of(folder), "/run", run="long", search="nothing is like this")  # what is loaded once, modules and templates, is loaded
    firsts = [
        ({}, "p1#0"),
        ({"order": "rejected"}, f"p{1 + rejected.argmax()}#0"),
        ({"search": "is 7 +"}, "p8#0"),
        ({"page": 2}, "p51#0"),
        ({"page": 9999}, "p99951#0"),
    ]
    for asked, first in firsts:
        began = time.process_time()
        html = page(client_of(folder), "/run", run="long", **asked)
        assert time.process_time() - began < 2, asked
        assert len(found := listed(html)) == 50
        assert found[0].startswith(first)
    assert "99,951 to 100,000 of 100,000" in html
    assert len(listed(html := report([folder]))) == 1000
    assert len(html) < 1.5e6
