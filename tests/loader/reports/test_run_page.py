"""The page of a run has its numbers, its charts and its slowest rows, and is one small file."""

import base64
import gzip
import html
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadax import Dataloader, Report, from_arrays, from_parquet
from loadax.cli import main
from loadax.errors import ArgumentError
from loadax.loader.metrics.stats import Stats, Timing
from loadax.loader.metrics.timeline import Piece, Recorder
from loadax.loader.reports.bottleneck import report
from loadax.loader.reports.run_page import run_page
from loadax.loader.reports.run_record import Snapshot, read_record, run_record

SLOW = 70


def slow(row: Any) -> Any:
    # a group of steps is one step where rows take this long
    time.sleep(0.15 if row["x"] == SLOW else 0.002)
    return row


def finished(loader: Dataloader, hosts: bool = False) -> Report:
    with loader.iterate() as batches:
        for _ in batches:
            pass
        return batches.report(hosts)


def specs_of(page: str) -> list[dict[str, Any]]:
    """The charts of a page, as a browser unpacks them."""
    packed = re.search(r'id="charts">([^<]+)<', page)
    assert packed is not None
    specs: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return specs


def test_page_names_the_slowest_row_and_its_file(tmp_path: Path) -> None:
    for number in range(4):
        x = np.arange(32 * number, 32 * (number + 1))
        pq.write_table(pa.table({"x": x}), tmp_path / f"part-{number}.parquet")
    data = from_parquet(tmp_path / "*.parquet").shuffle(seed=0).map(slow)
    loader = Dataloader(data, 8, num_workers=0)
    told = finished(loader)
    told.save(tmp_path / "run.html")
    told.save(tmp_path / "run.json")
    (place,) = loader.find(SLOW)
    record = read_record(tmp_path / "run.json")
    slowest = record.slowest[0]
    assert slowest["seconds"] >= 0.15
    assert slowest["step"] == place.step
    assert SLOW in [row["row"] for row in slowest["rows"]]
    page = (tmp_path / "run.html").read_text()
    assert "part-2.parquet" in page
    assert told.advice is not None
    finding, _, remark = html.unescape(re.search(r'class="verdict">(.*?)</p>', page)[1]).partition(" (but the first")  # type: ignore[index]
    assert finding in str(told)
    assert told.advice not in finding + remark
    assert f"<b>What would help:</b> {html.escape(told.advice)}.</p>" in page
    assert sum(steps for steps, *_ in record.bins) == 16
    assert sum(values[4] for values in record.bins) == 128


def test_page_of_a_million_steps_is_below_a_megabyte() -> None:
    recorder, stats = Recorder(), Stats()
    timing = Timing(read=0.001, transform=0.01, place=0.0001, rows=8, began=recorder._began)
    for step in range(20_000):
        at = recorder._began + 50.0 * step
        recorder.piece(timing._replace(began=at), at + 0.0137, Piece(0.011, step, 1, 0, 8))
        recorder.taken(at, 0.1 + step % 7 / 100, step, step % 3, 8)
        stats.took(50 * step, 0.1, 0.2, 8)
    record = run_record(report(stats), Snapshot(recorder.recording(), 0, [], []))
    page = run_page({"": record})
    assert len(page.encode()) < 1_000_000
    assert len(record.bins) <= 256
    waiting, _, _, _, timeline = specs_of(page)
    assert sum(len(spec["data"]["values"]) for spec in (waiting, timeline)) < 6000
    assert "https://" not in page, "nothing is fetched"


def test_pages_of_equal_records_are_equal(tmp_path: Path) -> None:
    told = finished(Dataloader(np.arange(64), 8))
    told.save(tmp_path / "run.json")
    record = read_record(tmp_path / "run.json")
    assert run_page({"": record}) == run_page({"": read_record(tmp_path / "run.json")})


def test_streams_have_a_page_without_rows(tmp_path: Path) -> None:
    data = from_arrays({"x": np.arange(64)}).to_stream(lanes=2)
    finished(Dataloader(data, 8)).save(tmp_path / "run.json")
    assert all(piece["rows"] == [] for piece in read_record(tmp_path / "run.json").slowest)


def test_command_makes_one_page_of_several_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [tmp_path / f"run-{process}.json" for process in (0, 1)]
    for process, name in enumerate(names):
        finished(Dataloader(np.arange(64), 8), hosts=True).save(name)
        saved = json.loads(name.read_text())
        saved.update(process=process, hosts=[[0, 8, 0.25], [1, 8, 0.5]])
        name.write_text(json.dumps(saved))
    assert main(["report", *map(str, names), "-o", str(tmp_path / "both.html")]) == 0
    assert "both.html: written" in capsys.readouterr().out
    page = (tmp_path / "both.html").read_text()
    assert "<h2>process 1</h2>" in page
    assert "<td>50%</td>" in page
    assert {value["host"] for value in specs_of(page)[1]["data"]["values"]} == {"process 0", "process 1"}
    assert main(["report", str(names[0])]) == 0
    assert names[0].with_suffix(".html").exists()


def test_runs_of_one_process_each_are_named_after_their_files(tmp_path: Path) -> None:
    paths = [tmp_path / "before.json", tmp_path / "after.json", tmp_path / "later" / "after.json"]
    paths[2].parent.mkdir()
    for path in paths:
        finished(Dataloader(np.arange(64), 8)).save(path)
    for given, names in ((paths[:2], ["before", "after"]), (paths[1:], [*map(str, paths[1:])])):
        assert main(["report", *map(str, given), "-o", str(tmp_path / "page.html")]) == 0
        page = (tmp_path / "page.html").read_text()
        assert {value["host"] for value in specs_of(page)[1]["data"]["values"]} == {*names}
        assert all(f"<h2>{name}</h2>" in page for name in names)


def test_report_is_a_frame_in_notebooks() -> None:
    told = finished(Dataloader(np.arange(64), 8))
    assert (told._repr_html_() or "").startswith("<iframe ")
    assert report(Stats())._repr_html_() is None


@pytest.mark.parametrize("name", ["run.png", "run", "s3://bucket/run.html"])
def test_other_suffixes_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"name a local file, run\.html for a page or run\.json for the data"):
        finished(Dataloader(np.arange(64), 8)).save(name)


def test_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"can't be written: No such file .* an existing folder"):
        finished(Dataloader(np.arange(64), 8)).save(tmp_path / "missing" / "run.html")


@pytest.mark.parametrize("text", ["[]", "{", '{"format": "loadax run 2"}', '{"format": "loadax run 1"}'])
def test_other_files_are_no_saved_runs(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"run.json' is not a saved run; pass the path of a file that"):
        read_record(path)
    assert main(["report", str(path)]) == 2
    assert "is not a saved run" in capsys.readouterr().err


def test_missing_files_and_wrong_outputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"can't be read: No such file or directory; pass the path"):
        read_record(tmp_path / "run.json")
    finished(Dataloader(np.arange(64), 8)).save(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json"), "-o", "run.pdf"]) == 2


def test_advice_is_said_once_where_a_remark_follows_it() -> None:
    recorder = Recorder()
    slow_start = Stats(steps=20, measured=18, waited=0.9, trained=0.1, first=5.0, transform=1.0, workers=1, cores=1)
    told = report(slow_start)
    assert told.advice is not None
    assert str(told).endswith("longer than all other steps together)")
    page = run_page({"": run_record(told, Snapshot(recorder.recording(), 0, [], []))})
    assert html.unescape(page).count(told.advice) == 1
