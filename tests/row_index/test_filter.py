"""`filter`: exact, looked at once, kept in an index that knows what it is of."""

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import concat, from_arrays, from_source, mix
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from tests.faulty import FaultySource
from tests.limits import HANG
from tests.row_index.filters import ROWS, SMALL, VALUES, counted, data, files, rows_of, small

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "loadax")
    return caplog


def said(log: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in log.records]
    log.clear()
    return found


# what is kept


def test_just_the_rows_that_pass_are_there() -> None:
    kept = data().filter(small)
    assert len(kept) == len(SMALL)
    assert rows_of(kept) == SMALL
    assert kept.read(range(len(kept)))["x"].tolist() == [int(VALUES[row]) for row in SMALL]
    assert repr(kept) == f"Dataset({len(SMALL)} rows of arrays in memory.filter({len(SMALL)} rows))"


def test_each_row_is_looked_at_once_and_only_those_that_are_met() -> None:
    seen: list[int] = []

    def look(example: Any) -> bool:
        seen.append(int(example["x"]))
        return True

    data()[10:400:3].shuffle(0).repeat(2).filter(look)
    assert sorted(seen) == sorted(VALUES[10:400:3].tolist())


def test_the_state_is_of_the_rows_that_are_kept(tmp_path: Path) -> None:
    one, same, other = (
        data().filter(small),
        data().filter(lambda example: example["x"] < 40),
        data().filter(lambda e: e["x"] > 60),
    )
    assert one.order_facts == same.order_facts != other.order_facts
    assert data().filter(small, index=tmp_path / "i").order_facts == one.order_facts
    assert data().filter(small, index=tmp_path / "i").order_facts == one.order_facts


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("many", [1, 7, 1024])
def test_runs_and_threads_change_nothing(workers: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.row_index.scan.SPAN_ROWS", many)
    assert rows_of(data().shuffle(0).filter(small, workers=workers)) == rows_of(data().filter(small).shuffle(0))


def test_it_can_not_write_to_the_data() -> None:
    images = np.zeros((4, 3))

    def clobber(example: Any) -> bool:
        example += 1
        return True

    with pytest.raises(ValueError, match="read-only"):
        from_arrays(images).filter(clobber)


# what is said


def test_without_an_index_the_log_says_what_was_done(log: pytest.LogCaptureFixture) -> None:
    data().filter(small)
    ((level, text),) = said(log)
    assert level == logging.INFO
    assert text.startswith("filter small (")
    assert text.endswith("read 500 rows; pass index=PATH to store the result")


def test_a_bar_where_it_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    data().filter(small, progress=True)
    data().split_by("user", 0.5, progress=True)
    err = capfd.readouterr().err
    assert "filter small: 100%" in err
    assert "split_by user: 100%" in err
    data().filter(small)
    assert not capfd.readouterr().err


# the index


def test_an_index_is_computed_once(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    index, calls = tmp_path / "deep" / "i", [0]
    said_of = index / "filter.json"
    small_again = counted(small, calls)
    calls.clear()
    first = data().filter(small_again, "k", index=index)
    assert (len(calls), said(log)) == (ROWS, [(logging.INFO, f"index {said_of}: written")])
    again = data().shuffle(0).filter(small_again, "k", index=str(index)).repeat(2)
    assert (len(calls), said(log)) == (ROWS, [(logging.INFO, f"index {said_of}: read")])
    assert rows_of(first) == SMALL
    assert rows_of(again) == rows_of(data().filter(small).shuffle(0).repeat(2))
    assert files(index.parent) == ["i"]
    assert [Path(name).suffix for name in files(index)] == [".npy", ".json"]


def test_an_index_of_something_else_is_built_anew(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    index = tmp_path / "i"
    described = index / "filter.json"
    other_values = from_arrays({"x": VALUES[::-1].copy(), "user": VALUES})
    steps: list[tuple[Any, Any, str | None]] = [
        (data(), small, None),
        (data(), lambda example: example["x"] > 3, "function or key"),
        (data(), lambda example: example["x"] > 4, "function or key"),
        (other_values, lambda example: example["x"] > 4, "contents of a sample, memory"),
        (other_values[:-1], lambda example: example["x"] > 4, "dataset, contents of a sample"),
        (other_values[1:], lambda example: example["x"] > 4, "dataset, contents of a sample"),
        (data(400), lambda example: example["x"] > 4, "dataset, contents of a sample, memory"),
        (
            data(400).map(lambda example: {**example, "x": example["x"] + 0}),
            lambda example: example["x"] > 4,
            "dataset",
        ),
        (
            data(400).map(lambda example: {"x": example["x"]}),
            lambda example: example["x"] > 4,
            "dataset, contents of a sample",
        ),
    ]
    for dataset, fn, differs in steps:
        kept = dataset.filter(fn, index=index)
        hint = "if several calls share the folder, pass each its own index="
        stale = f"index {described} does not match ({differs} differs) and is not used; {hint}"
        anew = [] if differs is None else [(logging.WARNING, stale)]
        assert said(log) == [*anew, (logging.INFO, f"index {described}: written")]
        assert rows_of(kept) == rows_of(dataset.filter(fn))
        log.clear()
        dataset.filter(fn, index=index)
        assert said(log) == [(logging.INFO, f"index {described}: read")]
    assert len(files(index)) == 2  # what nobody needs any more is gone


def test_filters_that_share_a_folder_are_told_to_use_their_own(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    def filtered(first: str, second: str) -> Any:
        large = data(40).filter(lambda example: example["x"] > 4, index=tmp_path / first)
        return large.filter(lambda example: example["x"] < 30, index=tmp_path / second)

    kept = rows_of(filtered("shared", "shared"))
    assert "if several calls share the folder, pass each its own index=" in log.text
    filtered("one", "other")
    log.clear()
    assert rows_of(filtered("one", "other")) == kept
    assert [text.rpartition(": ")[2] for _, text in said(log)] == ["read", "read"]


def test_other_contents_anywhere_in_the_sample_are_noticed(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    values = np.zeros((40, 3))
    for row in (0, 17, 39):
        values = values.copy()
        values[row, 1] = 1
        from_arrays(values).filter(lambda example: example.sum() == 0, "k", index=tmp_path / "i")
        assert said(log)[-1][1].endswith("written")


@pytest.mark.parametrize("damage", ["cut", "grown", "header", "version", "missing"])
def test_a_damaged_index_is_built_anew(tmp_path: Path, damage: str, log: pytest.LogCaptureFixture) -> None:
    data().filter(small, index=tmp_path)
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    described, array = tmp_path / "filter.json", next(tmp_path.glob("*.npy"))
    match damage:
        case "cut":
            array.write_bytes(whole[array][:-8])
        case "grown":
            described.write_bytes(whole[described] + b"x")
        case "header":
            described.write_bytes(whole[described][:30])
        case "version":
            described.write_bytes(whole[described].replace(b'"loadax index": 3', b'"loadax index": 2'))
        case "missing":
            array.unlink()
    said(log)
    assert rows_of(data().filter(small, index=tmp_path)) == SMALL
    level, text = said(log)[0]
    assert (level, text.startswith(f"index {described} can't be used: ")) == (logging.WARNING, True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == whole


def test_a_key_says_which_function_it_is(tmp_path: Path) -> None:
    calls = [0]
    fn = counted(small, calls)
    calls.clear()
    for key, expected in (("v1", ROWS), ("v1", ROWS), ("v2", 2 * ROWS)):
        data().filter(fn, key, index=tmp_path / "i")
        assert len(calls) == expected


class Threshold:
    def __init__(self, limit: int):
        self.limit = limit

    def __call__(self, example: Any) -> bool:
        return bool(example["x"] < self.limit)


def test_what_can_not_be_recognised_is_computed_anew_and_said(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    index = tmp_path / "i"
    for limit in (40, 60):
        assert len(data().filter(Threshold(limit), index=index)) == sum(value < limit for value in VALUES.tolist())
        ((level, text),) = said(log)
        assert level == logging.WARNING
        assert text.startswith(f"index {index} is neither read nor written: changes of <")
        assert "it depends on <" in text
        assert text.endswith("of type Threshold); pass key=, a text that you change with it")
    assert not index.exists()
    assert len(data().filter(Threshold(40), "below 40", index=index)) == len(SMALL)
    assert index.exists()


def test_finished_parts_are_kept_when_the_function_raises(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails(example: Any) -> bool:
        if len(calls) == 403 and is_broken:
            raise KeyError("no such thing")
        calls.append(int(example["x"]))
        return True

    is_broken = True

    with pytest.raises(KeyError) as caught:
        data().filter(fails, "v1", index=tmp_path, workers=1)
    (note,) = [note for note in caught.value.__notes__ if "parts are kept" in note]
    assert note == (
        f"loadax: 50 of 63 parts are kept in {next(tmp_path.glob('filter-*.parts'))}; the same call with "
        f"index={str(tmp_path)!r} goes on from there"
    )
    before, is_broken = len(calls), False
    assert len(data().filter(fails, "v1", index=tmp_path, workers=1)) == 500
    assert before == 403
    assert calls[before:] == VALUES[400:].tolist()
    assert {*files(tmp_path)} == {"filter.json", *(path.name for path in tmp_path.glob("filter-answers-*.npy"))}


def test_no_files_are_left_when_no_part_was_finished(tmp_path: Path) -> None:
    def fails(example: Any) -> bool:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        data().filter(fails, index=tmp_path / "i")
    assert files(tmp_path / "i") == []


# what is refused


def test_what_the_function_raises_names_the_row() -> None:
    def fails(example: Any) -> bool:
        if example["x"] == VALUES[123]:
            raise KeyError("no such thing")
        return True

    with pytest.raises(KeyError) as caught:
        data().filter(fails)
    row = VALUES.tolist().index(VALUES[123])
    assert caught.value.__notes__[0].startswith(
        "loadax: in filter test_what_the_function_raises_names_the_row.<locals>.fails ("
    )
    assert caught.value.__notes__[0].endswith(f"on row {row}")


def test_what_the_source_raises_names_the_rows() -> None:
    with pytest.raises(OSError, match="the disk is gone") as caught:
        from_source(FaultySource(data(), {77: OSError("the disk is gone")})).filter(small)
    assert caught.value.__notes__[0].startswith("loadax: reading ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"returned None for row 0; return True or False; did you forget to return\?"),
        (1, r"returned 1 for row 0; return True or False, such as bool\(…\)"),
        (np.ones(2, bool), r"returned array\(\[ True,  True\]\) for row 0"),
        (np.float32(1), r"returned np.float32\(1.0\) for row 0"),
    ],
)
def test_answers_that_are_no_bool(answer: Any, message: str) -> None:
    with pytest.raises(LeafTypeError, match=message):
        data().filter(lambda example: answer)


def test_none_kept() -> None:
    with pytest.raises(ArgumentError, match=r"keeps none of 500 rows; check its result for one: fn\(ds\[0\]\)"):
        data().filter(lambda example: False)
    with pytest.raises(ArgumentError, match=r"keeps none of 0 rows; filter a dataset with rows$"):
        data()[:0].filter(small)


def test_random_maps_come_after() -> None:
    noisy = data().map(lambda example, rng: example, rng=True)
    message = r"(filter|split_by)\(\) reads rows once; call it before random maps"
    for dataset in (noisy, concat([noisy, data()])):
        with pytest.raises(ArgumentError, match=message):
            dataset.filter(small)
        with pytest.raises(ArgumentError, match=message):
            dataset.split_by("user", 0.5)


def test_orders_whose_rows_change_are_refused() -> None:
    given: dict[str, list[Any]] = {"filter": [small], "exclude": [[1]], "split_by": ["user", 0.5]}
    for verb, arguments in given.items():
        with pytest.raises(ArgumentError, match=rf"{verb}\(\) after .* of a shuffle"):
            getattr(data().shuffle(0).subset_per_epoch(range(9)), verb)(*arguments)
        with pytest.raises(ArgumentError, match=rf"{verb}\(\) after mix\(\) would break its proportions"):
            getattr(mix([data(), data()], [1, 1]), verb)(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 3}, "fn=3 can't be called"),
        ({"key": 3}, "key=3: pass a str that you change when fn changes"),
        ({"key": "v1"}, "key='v1' is for an index; pass index=, a folder, as well, or leave key out"),
        ({"index": "s3://bucket/i"}, "index='s3://bucket/i' is a URL: pass the path of a local folder"),
        ({"index": 3}, "index=3 is an int: pass the path of a local folder"),
        ({"index": __file__}, r"index='.*' is a file; pass the path of a folder.* of an earlier loadax, delete it"),
    ],
)
def test_arguments_that_can_not_be_used(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        data().filter(**{"fn": small, **arguments})


def test_nobodys_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "filter.json").write_text('{"mine": 1}')
    with pytest.raises(
        ArgumentError, match=r"index .*filter.json is not a loadax index; pass another path, or delete it"
    ):
        data().filter(small, index=tmp_path)
    assert (tmp_path / "filter.json").read_text() == '{"mine": 1}'
    assert files(tmp_path) == ["filter.json"]


def test_places_that_can_not_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match=r"index .*file/i/filter.json can't be (read|written): .*; pass another path"):
        data().filter(small, index=tmp_path / "file" / "i")
    with pytest.raises(
        SourceError, match=r"index .* can't be written: .*; pass another path, delete this one, or free space"
    ):
        data().filter(small, index=Path("/proc/loadax/i"))


# the end


SLOW = """
import time, loadax, numpy as np
def slow(example):
    if example == 3:
        print("begun", flush=True)
    time.sleep(0.02)
    return True
loadax.from_arrays(np.arange(100_000)).filter(slow, index={index!r})
"""


@pytest.mark.processes
def test_an_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW.format(index=str(tmp_path / "i"))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGINT)
        _, problem = child.communicate(timeout=HANG)  # all rows take half an hour
    assert "KeyboardInterrupt" in problem
    assert files(tmp_path / "i") == []


MUCH = """
import resource
import numpy as np
import loadax
from loadax.protocols import ArraySpec

class Rows:
    spec = ArraySpec((2500,), np.dtype("f8"))
    def __len__(self):
        return 10_000
    def read(self, rows):
        return np.ones((len(rows), 2500))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

data = loadax.from_source(Rows())
data[:100].filter(lambda example: bool(example[0]), workers=2)
before = peak()
assert len(data.filter(lambda example: bool(example[0]), workers=2)) == 10_000
print(peak() - before)
"""


@pytest.mark.processes
def test_memory_is_bounded() -> None:
    """Of 200 MB of rows only a few runs of 4 MB are held at a time."""
    done = subprocess.run(
        [sys.executable, "-c", MUCH], cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60


class Add:
    """A function whose parameter can't be seen from outside."""

    def __init__(self, row: int):
        self.row = row

    def __call__(self, example: Any) -> Any:
        return {"x": example["x"] + 1000 * (example["x"] == self.row)}


def test_an_index_behind_a_map_whose_changes_are_invisible_needs_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def kept(row: int, **options: Any) -> int:
        data = from_arrays({"x": np.arange(1000)}).map(Add(row))
        return len(data.filter(lambda example: bool(example["x"] < 1000), index=tmp_path / "index", **options))

    assert kept(501) == kept(502) == 999
    assert "can't be detected (it depends on" in caplog.text
    assert "pass key=, a text that you change with it" in caplog.text
    assert not (tmp_path / "index").exists()
    assert kept(501, key="501") == 999
    assert (tmp_path / "index").is_dir()


def test_joined_datasets_that_differ_have_an_index(tmp_path: Path) -> None:
    unlike = concat([from_source([3, 4]), from_source([np.arange(2), np.arange(3)])])
    for _ in range(2):  # built, and found again
        kept = unlike.filter(lambda row: np.ndim(row) == 1, index=tmp_path / "index")
        assert [row.tolist() for row in kept] == [[0, 1], [0, 1, 2]]
