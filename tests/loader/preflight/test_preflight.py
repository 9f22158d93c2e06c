"""`Dataloader.preflight`: what it finds is what reading every row of the run one by one finds."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Buckets, Dataloader, Dataset, MaskErrors, chain, concat, from_arrays, from_npy, from_source, mix
from loadax.errors import ArgumentError, RowIndexError, StorageError, StreamError
from loadax.loader.preflight.report import FailedRow

ROWS = 200
LOOSE = MaskErrors(max_in_a_row=ROWS, max_share=1)


class Counted:
    """Rows with a few that fail, and a count of the reads of each."""

    def __init__(self, rows: int, bad: tuple[int, ...] = (), first: int = 0):
        self.reads: Counter[int] = Counter()
        self._rows, self._bad, self._first = rows, bad, first

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> Any:
        self.reads[row] += 1
        if row in self._bad:
            raise ValueError(f"row {row} is broken")
        return {"x": np.float32(self._first + row)}


class Misnamed(Counted):
    """Rows whose errors name a row that does not fail."""

    def __getitem__(self, row: int) -> Any:
        try:
            return super().__getitem__(row)
        except ValueError as error:
            raise ValueError("not row 1, nor row 5") from error


SPEC = {"x": np.zeros((), np.float32)}


def counted(source: Counted) -> Dataset:
    return from_source(source).map(lambda row: row, spec=SPEC)


def by_brute_force(loader: Dataloader) -> dict[int, str]:
    """Errors of the rows that fail by themselves, over all positions of the run."""
    failed: dict[int, str] = {}
    for phase in loader.phases:
        for step in range(phase.plan.num_steps or 0):
            visits = phase.plan.visits(step)
            for row, epoch in zip(visits.rows, visits.epochs, strict=True):
                if row >= 0 and row not in phase.pipeline.options.quarantine:
                    one = type(visits)(np.array([row]), np.array([epoch]))
                    try:
                        phase.pipeline.form(step).dataset.reader.read_visits(one)
                    except Exception as error:  # noqa: BLE001 - of the row
                        failed.setdefault(int(row), f"{type(error).__name__}: {error}")
    return failed


def masked(loader: Dataloader) -> list[int]:
    found: set[int] = set()
    for step, batch in enumerate(loader.host_batches()):
        rows = loader.rows(step)
        found |= {*rows[(rows >= 0) & ~batch["mask"]].tolist()}
    return sorted(found)


def fails_at_random(row: Any, rng: np.random.Generator) -> Any:
    if rng.random() < 0.05:
        raise ValueError("the draw of this epoch")
    return row


@pytest.mark.parametrize("seed", range(3))
def test_failed_rows_are_those_that_fail_alone_and_that_the_run_masks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bad = tuple(rng.choice(ROWS, 9, replace=False).tolist())
    steady = from_source(Counted(ROWS, bad)).shuffle(seed=1)
    drawn = from_source(Counted(ROWS, bad[:3], first=1000)).map(fails_at_random, rng=True).shuffle(seed=2)
    data = [steady, mix({"web": steady, "code": drawn}, [2, 1]), concat([drawn, steady])][seed]
    loader = Dataloader(data, 16, num_epochs=2, remainder="pad", on_error=LOOSE, quarantine=[bad[0]] if seed else None)
    report = loader.preflight(progress=False)
    expected = by_brute_force(loader)
    assert report.quarantine() == sorted(expected)
    assert {row.row: row.error for row in report.failed} == expected
    assert sorted({*expected, *([bad[0]] if seed else [])} & {*masked(loader)}) == masked(loader)
    assert not report.ok
    assert repr(report).startswith(f"Preflight(steps={len(loader)}, distinct=")


def test_list_of_failed_rows_is_a_quarantine_and_an_exclude() -> None:
    data = mix({"web": from_source(Counted(ROWS, (3, 77))), "code": from_source(Counted(ROWS, (5,)))}, [1, 1])
    loader = Dataloader(data, 16, on_error="mask")
    report = loader.preflight()
    assert report.quarantine() == [3, 77, ROWS + 5]
    assert report.quarantine(dataset="web") == [3, 77]
    assert report.quarantine(dataset="code") == [5]
    again = Dataloader(data, 16, quarantine=report.quarantine())
    assert again.preflight().ok
    assert masked(again) == [3, 77, ROWS + 5]
    parts = [from_source(Counted(ROWS, (3, 77))).exclude([3, 77]), from_source(Counted(ROWS, (5,))).exclude([5])]
    assert Dataloader(mix(parts, [1, 1]), 16).preflight().ok
    with pytest.raises(ArgumentError, match=r"^quarantine\(dataset='books', values=False\): pass the name of one of"):
        report.quarantine(dataset="books")


@pytest.mark.parametrize("kind", [Counted, Misnamed])
@pytest.mark.parametrize("bad", [(77,), (0, 199), (3, 4, 5, 150)])
def test_rows_that_fail_are_found_whatever_their_errors_name(kind: type[Counted], bad: tuple[int, ...]) -> None:
    source = kind(ROWS, bad)
    loader = Dataloader(counted(source), 8, on_error=LOOSE)
    source.reads.clear()
    assert loader.preflight(workers=1).quarantine() == list(bad)
    if kind is Counted and len(bad) == 1:  # read until it failed, alone, and the others once more
        assert max(source.reads.values()) <= 2


def test_each_row_is_read_once_however_often_it_occurs() -> None:
    source = Counted(ROWS)
    data = counted(source)
    one = Dataloader(data.shuffle(seed=0), 16, num_epochs=5)
    other = Dataloader(data[:64].repeat(3), 8, num_epochs=2)
    both = chain([one, other])
    source.reads.clear()  # one was read for the spec
    report = both.preflight()
    met = {row for step in range(len(one)) for row in one.rows(step).tolist()}
    assert source.reads == Counter(met)
    assert (report.distinct, report.rows) == (len(met), 16 * len(one) + 8 * len(other))
    assert report.steps == len(one) + len(other)


def test_random_maps_are_checked_once_an_epoch() -> None:
    plain, drawn = Counted(40), Counted(40)
    noisy = counted(drawn).map(lambda row, rng: {"x": row["x"] + np.float32(rng.random())}, rng=True, spec=SPEC)
    loader = Dataloader(concat([counted(plain), noisy]), 8, num_epochs=3)
    plain.reads.clear()
    drawn.reads.clear()
    report = loader.preflight()
    assert {*plain.reads.values()} == {1}
    assert {*drawn.reads.values()} == {3}
    assert (report.distinct, report.rows) == (40 + 3 * 40, 3 * 80)


def test_planned_steps_alone_are_read() -> None:
    source = Counted(ROWS)
    loader = Dataloader(counted(source).shuffle(seed=4), 8, num_epochs=None)
    source.reads.clear()
    assert loader.preflight(3).steps == 3
    assert {*source.reads} == {*np.concatenate([loader.rows(step) for step in range(3)]).tolist()}
    source.reads.clear()
    loader.preflight(range(10, 12))
    assert {*source.reads} == {*loader.rows(10).tolist(), *loader.rows(11).tolist()}
    with pytest.raises(ArgumentError, match="the run is infinite; pass steps="):
        loader.preflight()
    with pytest.raises(ArgumentError, match=r"^steps=\[1\]: pass a range of consecutive steps"):
        loader.preflight([1])  # type: ignore[arg-type]
    with pytest.raises(RowIndexError, match="step 12 is out of range"):
        Dataloader(from_arrays(np.arange(96)), 8).preflight(13)


def test_values_not_finite_or_out_of_bounds_are_those_of_numpy() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    x[rng.choice(ROWS, 5), 1] = np.nan
    x[17, 2] = np.inf
    label = rng.integers(-2, 12, ROWS).astype(np.int32)
    wide = rng.normal(size=ROWS)
    wide[30] = 1e300  # infinite as float32, the dtype of the batch
    data = from_arrays({"x": x, "meta": {"label": label}, "wide": wide})
    report = Dataloader(data.shuffle(seed=1), 8).preflight(bounds={"meta.label": (0, 9), "x": (None, 2)})
    values = {leaf.leaf: leaf for leaf in report.values}
    assert values["x"].not_finite == tuple(np.flatnonzero(~np.isfinite(x).all(1)))
    assert values["x"].above == tuple(np.flatnonzero((np.isfinite(x) & (x > 2)).any(1)))
    assert values["meta.label"].below == tuple(np.flatnonzero(label < 0))
    assert values["meta.label"].above == tuple(np.flatnonzero(label > 9))
    assert (values["meta.label"].least, values["meta.label"].most) == (label.min(), label.max())
    assert values["x"].most == x[np.isfinite(x)].max()
    flagged = {*values["x"].rows, *values["meta.label"].rows}
    assert {*report.quarantine(values=True)} == flagged | {*report.quarantine()} | {*values["wide"].rows}
    assert 30 in report.quarantine(values=True)  # refused as it is cast, or infinite
    for line in (f"x: {len(values['x'].not_finite)} rows not finite: ", "above the bounds", "below the bounds"):
        assert line in str(report)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"y": (0, 1)}, r"^bounds: .*'y'"),
        ({"x": 3}, r"^bounds\['x'\]=3: pass two numbers, the least and the greatest, or None in place of one$"),
        ({"x": (0, "1")}, r"^bounds\['x'\]='1': pass two numbers"),
        ({"name": (0, 1)}, r"^bounds: leaf 'name' is object, not a real number; leave it out$"),
        (
            3,
            r"^bounds=3: pass the least and the greatest value by leaf, \{'x': \(0, 1\)\}; None in place of one leaves",
        ),
    ],
)
def test_bounds_that_can_not_be_used(bounds: Any, message: str) -> None:
    data = from_arrays({"x": np.arange(8), "name": np.array(["a"] * 8, object)})
    with pytest.raises(ArgumentError, match=message):
        Dataloader(data, 8, host_leaves="name").preflight(bounds=bounds)


def test_shapes_are_those_of_the_batches() -> None:
    rows = [{"tokens": np.arange(1 + row % 8), "name": "text"} for row in range(64)]
    loaders = [
        Dataloader(from_source(rows), Buckets("tokens", {4: 16, 8: 8}), host_leaves="name"),
        Dataloader({"tokens": np.zeros((64, 8))}, {0: 32, 1: 16}, remainder="pad", num_epochs=2, microbatches=2),
        Dataloader({"tokens": np.zeros((64, 8))}, 8, seq_len={0: 4, 5: 8}, key_seed=1),
    ]
    for loader in loaders:
        report = loader.preflight()
        expected: Counter[Any] = Counter()
        for batch in loader:
            expected[tuple((name, leaf.shape, str(leaf.dtype)) for name, leaf in sorted(batch.items()))] += 1
        found = {tuple(tuple(leaf) for leaf in shape.leaves): shape.steps for shape in report.shapes}
        assert found == expected
        assert report.compilations == len(expected) == len(loader.specs)
        assert [shape.first for shape in report.shapes] == [*loader.specs]


def test_cropped_rows_are_read_once_as_long_as_they_ever_are() -> None:
    tokens = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
    tokens[3, 7] = np.nan
    loader = Dataloader(from_arrays({"tokens": tokens}).shuffle(seed=0), 8, num_epochs=2, seq_len={0: 4, 8: 8})
    report = loader.preflight()
    assert (report.distinct, report.rows) == (64, 128)
    assert report.values[0].not_finite == (3,)
    assert loader.preflight(8).ok  # their entry 7 is not read


def test_index_keeps_the_findings_and_notices_changes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    np.save(tmp_path / "x.npy", np.arange(64.0, dtype=np.float32))

    def noting(row: Any) -> Any:
        with log.open("a") as out:
            out.write(f"{float(row)}\n")
        if row == 7:
            raise ValueError("seven")
        return row

    def reads() -> int:
        count = len(log.read_text().splitlines())
        log.write_text("")
        return count

    loader = Dataloader(from_npy(tmp_path / "x.npy").map(noting), 8)
    plain = loader.preflight(bounds={"": (0, 60)})
    assert reads() >= 64
    arguments: dict[str, Any] = {"index": tmp_path / "index", "key": "noting", "bounds": {"": (0, 60)}}
    with ThreadPoolExecutor(2) as executor:
        first = loader.preflight(executor=executor, **arguments)
    assert reads() >= 64
    second = loader.preflight(**arguments)
    assert reads() == 0
    assert first.quarantine() == second.quarantine() == plain.quarantine() == [7]
    assert first == second
    assert plain.values == second.values
    loader.preflight(**{**arguments, "bounds": None})
    assert reads() >= 64
    loader.preflight(4, **arguments)
    assert 32 <= reads() < 64
    np.save(tmp_path / "x.npy", np.zeros(64, np.float32))
    changed = Dataloader(from_npy(tmp_path / "x.npy").map(noting), 8).preflight(**arguments)
    assert changed.ok
    with pytest.raises(ArgumentError, match="executor= needs index="):
        loader.preflight(executor=lambda: ThreadPoolExecutor(1))


def test_error_of_storage_ends_it_as_it_ends_the_run() -> None:
    def fetched(row: Any) -> Any:
        if row["x"] == 9:
            raise StorageError("the server has gone")
        return row

    with pytest.raises(StorageError, match="the server has gone"):
        Dataloader(from_arrays({"x": np.arange(32)}).map(fetched), 8, on_error="mask").preflight()


def test_slow_row_slow_file_and_bytes_of_sources_are_told(tmp_path: Path) -> None:
    def slow(row: Any) -> Any:
        if row["x"][0] == 300:
            time.sleep(0.3)
        return row

    for name, first in (("a", 0), ("b", 256)):
        np.save(tmp_path / f"{name}.npy", np.arange(first, first + 256.0, dtype=np.float32).repeat(4).reshape(-1, 4))
    parts = {name: from_npy(tmp_path / f"{name}.npy").map(lambda row: {"x": row}).map(slow) for name in "ab"}
    report = Dataloader(mix(parts, [1, 1]), 8, num_epochs=2).preflight(workers=1)
    assert report.slow_rows[0].first <= 300 <= report.slow_rows[0].last
    assert report.slow_files[0].file == str(tmp_path / "b.npy")
    assert [source.dataset for source in report.sources] == ["a", "b"]
    for source in report.sources:
        assert (source.rows, source.distinct) == (512, 256)
        assert source.batch_bytes == source.stored_bytes == 512 * 16
        assert source.requests == 0
    assert report.seconds > report.sources[1].seconds > 0.3
    assert report.cpu_seconds < report.seconds


def test_report_is_json_and_text() -> None:
    data = concat([from_source(Counted(ROWS, tuple(range(1, 151)))), from_source(Counted(8))])
    report = Dataloader(data, 8, on_error=LOOSE).preflight()
    told = json.loads(json.dumps(report.to_dict()))
    assert [row["row"] for row in told["failed"]] == [*range(1, 151)]
    assert told["failed"][0] == FailedRow(1, 0, (0,), "part 0", 1, "", "ValueError: row 1 is broken")._asdict() | {
        "phases": [0]
    }
    assert (told["ok"], told["compilations"]) == (False, 1)
    assert told["shapes"][0]["leaves"][1] == {"leaf": "x", "shape": [8], "dtype": "float32"}
    assert "150 rows can't be read:\n  quarantine=[1, 2, 3, " in str(report)
    assert "  row 1 (row 1 of part 0): ValueError: row 1 is broken\n" in str(report)
    assert "and 140 more" in str(report)


def test_phases_of_a_chain_have_their_own_lists() -> None:
    one = Dataloader(from_source(Counted(32, (3,))), 8, on_error="mask")
    other = Dataloader(from_source(Counted(32, (4,))), 8, on_error="mask")
    report = chain([one, other]).preflight()
    assert (report.quarantine(0), report.quarantine(1)) == ([3], [4])
    assert "1 row can't be read in phase 1:\n  quarantine=[4]" in str(report)


def test_streams_are_refused() -> None:
    stream = loadax.from_stream(lambda lane, lanes: iter([{"x": np.float32(lane)}] * 4), lanes=8)
    with pytest.raises(StreamError, match=r"preflight\(\)"):
        Dataloader(stream, 8).preflight()


def test_preflight_of_a_mixture_without_an_end_needs_steps() -> None:
    parts = [from_arrays(np.arange(8)), from_arrays(np.arange(8))]
    loader = Dataloader(mix(parts, [1, 1], stop="never"), 4)
    with pytest.raises(ArgumentError, match=r"the mixture never ends, .*; pass steps=range\(start, stop\)"):
        loader.preflight()
    with pytest.raises(ArgumentError, match="the mixture never ends"):
        loader.digest()
    assert loader.preflight(range(4)).ok
