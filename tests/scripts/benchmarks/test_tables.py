"""The arithmetic of a run, and the page that is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.benchmarks.scripts import load, run


def contestant(*millions: float) -> dict[str, Any]:
    """One that fed so many million rows a second, round by round."""
    rounds = [
        {"rows": 2e6 * speed, "seconds": 2.0, "cpu_seconds": 6.0 * speed, "memory": 10**6, "others": 0.25}
        for speed in millions
    ]
    return {"first": {"cold": 1.0, "warm": 0.5}, "check": {"rows": 1}, "rounds": rounds}


def a_run(**contestants: dict[str, Any]) -> dict[str, Any]:
    machine = {"machine": "x86_64, 2 cores", "python": "3.11", "jax": "0.10.2", "loadax": "0", "commit": "abc"}
    return {"machine": machine, "options": {}, "missing": {}, "failed": {}, "contestants": contestants, "extras": {}}


def test_ratios_are_taken_round_by_round() -> None:
    report, found = load("report"), a_run(loadax=contestant(1, 2, 4), numpy=contestant(2, 1, 1))
    assert report.ratios(found, "loadax", "numpy") == [0.5, 2.0, 4.0]
    assert report.ratio(found, "loadax", "numpy") == 2.0
    assert report.speeds(found, "loadax") == [1e6, 2e6, 4e6]
    assert report.cpu_seconds(found, "numpy") == 3
    cells = [line.split() for line in report.table(found).splitlines()]
    assert cells[2] == ["numpy", "1,000,000", "2.00", "x", "0.50-4.00", "3.00", "1", "MB", "500.0", "ms", "1000", "ms"]


def test_the_best_peer_is_the_fastest_by_its_median_and_no_loop_by_hand() -> None:
    report = load("report")
    found = a_run(
        **{"loadax": contestant(4), "numpy": contestant(9), "grain-2": contestant(1, 5, 2), "torch-2": contestant(3)}
    )
    assert report.peers(found) == ["grain-2", "torch-2"]
    assert report.best(found, report.peers(found)) == "torch-2"
    assert report.best(found, ["spdl"]) is None


def test_processor_time_is_beside_that_of_who_takes_least_of_all_or_of_the_process_that_trains() -> None:
    def costing(seconds: float, trainer: float) -> dict[str, Any]:
        rounds = [
            {"rows": 10, "seconds": 1.0, "cpu_seconds": seconds, "trainer_seconds": trainer, "memory": 1, "others": 0.0}
        ]
        return {"first": None, "check": None, "rounds": rounds}

    tables, report = load("tables"), load("report")
    found = a_run(
        **{"loadax": costing(6, 1), "torch-0": costing(4, 4), "torch-2": costing(8, 2), "numpy": costing(3, 3)}
    )
    assert tables.cpu()(found) == tables.cpu("torch-0", "torch-2", "torch-9")(found) == 1.5
    assert tables.cpu("numpy")(found) == 2.0
    assert tables.cpu("torch-0", "torch-2", of=report.trainer_seconds)(found) == 0.5
    assert tables.cpu("spdl")(found) is None


def test_remarks_tell_who_is_missing_and_what_was_measured_besides() -> None:
    found = a_run(loadax=contestant(1))
    found["missing"], found["failed"] = {"torch-2": "torch"}, {"spdl": "spdl ended"}
    found["contestants"]["loadax"]["check"]["psnr"] = 41.23
    found["extras"] = {
        "sleep": {"share": 0.004, "median": 4e-5, "most": 2e-3, "floor": {"share": 0.001}},
        "resume": {"far": 0.004, "near": 0.003, "more": 0.001},
        "hour": {"steps": 3600, "minute": 100e6, "hour": 101e6},
    }
    assert load("report").remarks(found) == [
        "torch-2: not installed: torch",
        "spdl: failed: spdl ended",
        "loadax: at least 41.2 dB from Pillow's pictures",
        "others used 25% of the machine",
        "steps of 10 ms wait 0.40% of the time, 40 us each and 2.00 ms at most; an iterator that does nothing, 0.10%",
        "first batch from step 10^6 4.0 ms, from the start 3.0 ms, +1.0 ms",
        "3,600 steps: 100.0 MB in the first sixtieth, 101.0 MB at most, +1.0%",
    ]


def test_the_page_gets_its_tables_and_pictures_and_keeps_the_rest(tmp_path: Path) -> None:
    slower = {"numpy": contestant(1), "grain-inline": contestant(0.1), "grain-2": contestant(0.05)}
    runs = [a_run(loadax=contestant(speed), **slower) for speed in (2, 3, 4)]
    (tmp_path / "tokens.json").write_text(json.dumps({"workload": "tokens", "text": "", "runs": runs}))
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- measured: shows -->\nold\n<!-- end -->\nbetween\n"
        "<!-- measured: all-tokens -->\n<!-- end -->\n<!-- measured: images -->\nkept\n<!-- end -->\n"
        "<!-- measured: setting -->\n<!-- end -->\n<!-- measured: overview -->\n<!-- end -->\n"
    )
    arguments = ("tables.py", str(tmp_path / "tokens.json"), "--page", str(page))
    run(*arguments)
    lines = page.read_text().splitlines()
    file = "(../benchmarks/results/tokens.json)"
    assert f"| tokens: a gather and `device_put` by hand | 1.3 | [2.00 · 3.00 · 4.00]{file} |" in lines
    assert f"| tokens: Grain, per element, at its best | 20 | [20 · 30 · 40]{file} |" in lines
    assert "| images: the best peer | 1.0 | - |" in lines
    assert "| `numpy` | 1,000,000 | 3.00 x | 3.00-3.00 | 3.00 | 1 MB | 500.0 ms | 1000 ms |" in lines
    assert (
        "Measured on x86_64, 2 cores, python 3.11, jax 0.10.2, at abc. Meanwhile other processes used 25% of the "
        "machine." in lines
    )
    assert (
        "| [tokens in a memory-mapped file](#tokens) | 3.00 | 30.0 |  |  |  |  "
        "| [3 runs](../benchmarks/results/tokens.json) |" in lines
    )
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == [
        *("loadax", "numpy", "grain-inline", "grain-2"),
    ]
    assert lines[0] == "before"
    assert {"between", "kept"} <= set(lines)
    assert "old" not in lines
    picture = (tmp_path / "assets" / "benchmarks-tokens.svg").read_text()
    assert "3,000,000" in picture
    assert "grain-inline" in picture
    made = page.read_text()
    run(*arguments)
    assert page.read_text() == made
    assert (tmp_path / "assets" / "benchmarks-tokens.svg").read_text() == picture


def test_floors_growth_and_accelerators_get_their_tables(tmp_path: Path) -> None:
    def side(cpu: float) -> dict[str, float]:
        return {"cpu": cpu, "rate": 1.5, "step_us": 80.0}

    runs = [{"before": side(0.5), "after": side(cpu)} for cpu in (0.8, 0.9, 1.0)]
    floors = {
        "one": {"text": "a gather", "goal": 0.85, "kind": "share", "runs": runs},
        "two": {"text": "a loop", "goal": 1.6, "kind": "times", "runs": runs},
        "three": {"text": "a step", "goal": 60, "kind": "step", "runs": runs[:1]},
    }
    cost = {"text": "parts", "sizes": [1, 1000], "unit": "ms", "exponent": 0.2, "most": 0.05}
    sides = {"before": {"figures": [1, 690.0], "exponent": 1.1}, "after": {"figures": [0.04, 0.04], "exponent": 0.0}}
    rising = {"text": "files", "after": {"figures": [2.0, 2345.6], "exponent": 0.9}}
    loaders = {"loadax": {"measured": {"1": {"utilisation": 0.97}}, "most": 4}, "grain": {"measured": {}, "most": 0}}
    (tmp_path / "floors.json").write_text(json.dumps({"floors": floors}))
    (tmp_path / "growth.json").write_text(
        json.dumps({"growth": {"state": {**cost, **sides}, "open": {**cost, **rising}}})
    )
    entry = {"text": "small", "loaders": loaders}
    (tmp_path / "accelerators.json").write_text(json.dumps({"accelerators": {"resnet50": entry}}))
    page = tmp_path / "page.md"
    page.write_text(
        "".join(
            f"<!-- measured: {name} -->\n<!-- end -->\n" for name in ("floors", "all-floors", "growth", "accelerators")
        )
    )
    run("tables.py", *(str(path) for path in sorted(tmp_path.glob("*.json"))), "--page", str(page))
    lines = page.read_text().splitlines()
    assert "| a gather | 0.85 | 0.90 | 1.50 |" in lines
    assert "| a gather | 0.85 | **0.50** | 0.90 | 1.50 | 1.50 |" in lines
    assert "| a loop | at most 1.6 | **2.00** | 1.11 | 1.50 | 1.50 |" in lines
    assert "| a step | at most 60 | **80** | **80** | 1.50 | 1.50 |" in lines
    assert "| parts | 1,000 | **690 ms** | 0.04 ms | 0.05 ms | **1.1** | 0.0 | 0.2 |" in lines
    assert "| resnet50, small | 4 (one: 97%) | 0 |" in lines


def test_without_results_it_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text(json.dumps({"machine": {}}))
    with pytest.raises(AssertionError, match=r"there are no results; run benchmarks/run.py first"):
        run("tables.py", str(tmp_path / "empty.json"))


def test_every_workload_of_the_pages_is_one_that_can_be_run() -> None:
    tables = load("tables")
    text = "".join(page.read_text() for page in tables._PAGES)
    blocks = {match[1] for match in tables._BLOCK.findall(text)}
    workloads = load("workloads").FULL.keys() - set(tables._STORES)
    tables_of_all = {
        "setting",
        "overview",
        "shows",
        "stores",
        "floors",
        "all-floors",
        "growth",
        "accelerators",
        "bucket",
    }
    assert blocks == tables_of_all | {f"all-{name}" for name in workloads}
    assert {name for _, name, *_ in (*tables._SHOWS, *tables._STORE_ROWS)} <= load("workloads").FULL.keys()


def test_a_bucket_has_a_line_of_medians_for_each_latency_and_each_data_that_loadax_read() -> None:
    def turns(*rates: float) -> list[dict[str, float]]:
        return [{"rate": rate, "first": 1 / rate} for rate in rates]

    kinds = {"tar": {"loadax": turns(400, 100, 200), "webdataset": turns(100)}, "zarr": {"tensorstore": turns(1)}}
    found = {"20 ms": kinds, "100 ms": {"parquet-blocks": {"loadax": turns(1)}}}
    assert load("tables").bucket(found)[2:] == [
        "| 20 ms | tar files of JPEGs, in order | 200 | 0.01 s | webdataset 2.00 |"
    ]
