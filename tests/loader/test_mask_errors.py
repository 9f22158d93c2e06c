"""Rows that can't be read keep their positions: `on_error=MaskErrors(…)` and `quarantine=`."""

import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

import loadax
from loadax import Dataloader, Dataset, MaskErrors, concat, from_arrays, from_source, mix
from loadax.errors import ArgumentError, SourceError, StorageError
from loadax.interop import prometheus
from loadax.loader.mask_errors import quarantined_rows
from loadax.sharding import data_parallel
from tests.limits import HANG

ROWS = 60
BAD = {3, 4, 17, 31, 59}
FOUR = data_parallel(jax.devices()[:4])
LOOSE = MaskErrors(max_in_a_row=ROWS, max_share=1)
ERRORS: dict[str, Any] = {
    "ValueError": ValueError,
    "broken image": lambda text: OSError(f"broken data stream: {text}"),
    "user's assertion": AssertionError,
    "user's type": TypeError,
    "StopIteration": StopIteration,
    "no class of ours": type("OwnError", (Exception,), {}),
}


def fails(error: Any = ValueError, bad: set[int] = BAD) -> Any:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        if int(row["x"]) in bad:
            raise error(f"row {int(row['x'])} is broken")
        return row

    return check


def data(error: Any = ValueError, bad: set[int] = BAD) -> Any:
    rows = {"x": np.arange(ROWS), "y": np.arange(ROWS, dtype=np.float32) + 1}
    return from_arrays(rows).map(fails(error, bad)).shuffle(seed=2)


def check(loader: Dataloader, batch: Any, step: int, bad: set[int] = BAD) -> None:
    """The batch has the rows of the plan, with zeros and False in the places of bad ones."""
    rows = loader.rows(step)
    real = np.array([row >= 0 and row not in bad for row in rows.tolist()])
    np.testing.assert_array_equal(batch["mask"], real)
    np.testing.assert_array_equal(batch["x"], np.where(real, rows, 0))
    np.testing.assert_array_equal(batch["y"], np.where(real, rows + 1, 0))


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_row_keeps_its_position_and_takes_no_other_with_it(error: Any, workers: int) -> None:
    loader = Dataloader(data(error), 16, num_epochs=2, remainder="pad", on_error=LOOSE, num_workers=workers)
    with loader.iterate() as batches:
        for batch in batches:
            check(loader, batch, batches.step - 1)
        assert batches.stats().masked == 2 * len(BAD)
        assert f"; {2 * len(BAD)} of " in str(batches.report())
    check(loader, loader[1], 1)
    check(loader, loader.host_batch(1), 1)
    with loader.host_batches() as on_host:
        check(loader, next(on_host), 0)


@pytest.mark.processes
def test_worker_processes_mask_too() -> None:
    loader = Dataloader(data(), 16, on_error=LOOSE, num_workers=1, worker_type="process")
    for step, batch in enumerate(loader):
        check(loader, batch, step)


@given(bad=st.sets(st.integers(0, ROWS - 1), max_size=ROWS - 1), batch=st.sampled_from([8, 16, 24]))
def test_batches_do_not_depend_on_pieces(bad: set[int], batch: int) -> None:
    loader = Dataloader(data(bad=bad), batch, on_error=LOOSE)
    for step, placed in enumerate(loader):
        check(loader, placed, step, bad)


def test_rows_of_a_source_that_fails_by_itself() -> None:
    class Rows:
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, row: int) -> Any:
            return fails()({"x": np.int64(row), "y": np.float32(row + 1)})

    loader = Dataloader(from_source(Rows()).shuffle(seed=1), 16, on_error=LOOSE)
    for step, batch in enumerate(loader):
        check(loader, batch, step)


def test_a_value_that_does_not_fit_is_masked() -> None:
    values = np.arange(ROWS)
    values[17] = 2**40
    rows = from_arrays({"x": values, "y": np.arange(ROWS, dtype=np.float32) + 1})
    loader = Dataloader(rows, 20, on_error=LOOSE, mesh=FOUR)
    check(loader, loader[0], 0, {17})


@pytest.mark.parametrize("options", [{"on_error": LOOSE}, {"quarantine": [0, 1]}])
def test_the_spec_is_that_of_the_first_row_that_can_be_read(options: dict[str, Any]) -> None:
    rows = from_arrays({"x": np.arange(ROWS), "t": np.ones((ROWS, 8))}).map(fails(bad={0, 1}))
    for seq_len in (None, 4):
        batch = Dataloader(rows, 8, seq_len=seq_len, **options)[0]
        assert (batch["t"].shape, batch["mask"].tolist()) == ((8, seq_len or 8), [False] * 2 + [True] * 6)
    with pytest.raises(ValueError, match="row 0 is broken"):
        Dataloader(rows, 8)
    with pytest.raises(ValueError, match="row 0 is broken"):
        Dataloader(from_arrays({"x": np.arange(ROWS)}).map(fails(bad={*range(ROWS)})), 8, on_error=LOOSE)


def test_host_leaves_are_masked_with_the_batch() -> None:
    ids = np.arange(16)
    ids[3] = 2**40
    data = from_arrays({"id": ids, "name": np.array([f"n{row}" for row in range(16)])})
    loader = Dataloader(data, 8, on_error=LOOSE, host_leaves="name")
    names = ["n0", "n1", "n2", "", *(f"n{row}" for row in range(4, 8))]
    with iter(loader) as batches:
        assert not next(batches)["mask"][3]
        assert batches.host["name"].tolist() == loader.host(0)["name"].tolist() == names


def test_rows_that_are_read_again_count_once(tmp_path: Path) -> None:
    rows = from_arrays({"x": np.arange(2000)}).map(fails(bad=set(range(800, 812))))
    record = tmp_path / "bad.jsonl"
    masking = MaskErrors(max_share=0, record=record)
    with pytest.raises(SourceError, match=r"^1[12] of \d+ rows can't be read, .* the last is row 81[01]: ") as caught:
        list(Dataloader(rows, 8, on_error=masking, num_workers=1))
    assert "loadax: in step 101" in caught.value.__notes__
    assert len(set(record.read_text().splitlines())) == len(record.read_text().splitlines()) >= 10


def test_saved_states_are_those_without_masks() -> None:
    masked, plain = Dataloader(data(), 8, on_error="mask"), Dataloader(data(bad=set()), 8)
    assert masked.iterate(3).get_state() == plain.iterate(3).get_state()


def because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


NEVER = {
    "cause": because(ValueError("can't decode"), OSError(5, "Input/output error")),
    "memory": MemoryError(),
    "no space": OSError(28, "No space left on device"),
    "file": FileNotFoundError(2, "No such file"),
    "network": ConnectionResetError("reset"),
    "time": TimeoutError(),
    "storage": StorageError("s3://bucket/x: UNAVAILABLE"),
    "argument": ArgumentError("x=3: no"),
    "HTTP": HTTPError("http://127.0.0.1", 503, "busy", Message(), None),
    "threads": RuntimeError("can't start new thread"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
}


@pytest.mark.parametrize("error", NEVER.values(), ids=NEVER)
def test_what_one_machine_does_is_never_masked(error: BaseException) -> None:
    def check(row: Any) -> Any:
        if row["x"] == 3:
            raise error
        return row

    rows = from_arrays({"x": np.arange(16)}).map(check)
    with (
        Dataloader(rows, 8, on_error=LOOSE, num_workers=0).iterate() as batches,
        pytest.raises(BaseException) as caught,
    ):
        next(batches)
    raised = caught.value
    assert error in (raised, raised.__cause__)


def test_mistakes_of_loadax_are_never_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadax.loader.assembly import assembler

    def mistaken(*_: Any) -> Any:
        return None + 1  # type: ignore[operator]

    loader = Dataloader(from_arrays({"x": np.arange(16)}), 8, on_error=LOOSE)
    mistaken.__code__ = mistaken.__code__.replace(co_filename=assembler.__file__)
    monkeypatch.setattr(assembler.Assembler, "_plain_columns", mistaken)
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = loader[0]


def test_too_many_in_a_row_end_the_run() -> None:
    rows = from_arrays({"x": np.arange(ROWS)}).map(fails(bad={5, *range(20, 30)}))

    def loader(most: int) -> Dataloader:
        return Dataloader(rows, 20, on_error=MaskErrors(max_in_a_row=most, max_share=1), mesh=FOUR)

    message = (
        r"^5 rows in a row can't be read, more than max_in_a_row=4 of on_error; the last is row 24: "
        r"ValueError: row 24 is broken; repair the data, or pass a larger max_in_a_row"
    )
    with loader(4).iterate() as batches:
        next(batches)
        with pytest.raises(SourceError, match=message):
            next(batches)
    assert sum(1 for _ in loader(10)) == 3


def test_too_large_a_share_ends_the_run() -> None:
    rows = from_arrays({"x": np.arange(2000)}).map(fails(bad=set(range(50, 2000, 50))))
    message = (
        r"^11 of \d+ rows can't be read, more than max_share=0.001 of on_error; the last is row 550: .*; "
        r"repair the data, or pass a larger max_share"
    )
    with pytest.raises(SourceError, match=message):
        list(Dataloader(rows, 8, on_error="mask", num_workers=0))
    assert len(list(Dataloader(rows, 8, on_error=MaskErrors(max_share=0.05)))) == 250


@pytest.mark.parametrize("batch_size", [1, 5])
def test_steps_that_are_read_together_are_masked_up_to_the_row_that_ends_the_run(batch_size: int) -> None:
    rows = from_arrays({"x": np.arange(2000)}).map(fails(bad=set(range(50, 2000, 50))))
    loader = Dataloader(rows, batch_size, on_error="mask", num_workers=0, mesh=data_parallel(jax.devices()[:1]))
    with loader.iterate() as batches:
        for _ in range(550 // batch_size):
            next(batches)
        with pytest.raises(SourceError, match=r"the last is row 550: "):
            next(batches)


def test_the_record_is_the_quarantine_of_the_next_run(tmp_path: Path) -> None:
    record = tmp_path / "bad.jsonl"
    parts = {"one": data(), "other": data(bad={7})}
    mixed = mix(parts, weights=[1, 1])
    loader = Dataloader(mixed, 8, on_error=MaskErrors(record=record, max_share=1), num_workers=0)
    masked = [np.asarray(batch["mask"]) for batch in loader]
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    assert record.stat().st_mode & 0o077 == 0
    assert {(entry["dataset"], entry["row"]) for entry in entries} <= {("other", 7), *(("one", row) for row in BAD)}
    assert len(entries) == sum(int((~mask).sum()) for mask in masked) > 3
    for entry in entries:
        assert entry["error"] == f"ValueError: row {entry['row']} is broken"
        assert loader.rows(entry["step"])[entry["position"]] == entry["id"]
        assert not masked[entry["step"]][entry["position"]]
    again = Dataloader(mixed, 8, quarantine=record)  # raises nothing, since they are never read
    for step, batch in enumerate(again):
        np.testing.assert_array_equal(batch["mask"], masked[step])
    assert again.iterate(2).get_state() == loader.iterate(2).get_state()


def test_rows_in_quarantine_are_never_read() -> None:
    loader = Dataloader(data(), 16, num_epochs=2, quarantine=BAD)
    for step, batch in enumerate(loader):
        check(loader, batch, step)
    check(loader, loader.host_batch(2), 2)
    plain = Dataloader(data(bad=set()), 16, num_epochs=2)
    for step in range(len(loader)):
        quarantined = np.isin(loader.rows(step), list(BAD)).any()
        assert (loader.digest(range(step, step + 1)) != plain.digest(range(step, step + 1))) == quarantined


def test_records_of_all_processes_are_one_quarantine(tmp_path: Path) -> None:
    files = {"bad": 3, "bad-1": 4, "bad-12": 17, "bad-old": 1, "worse": 2}
    for name, row in files.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": row, "rows": ROWS}) + "\n")
    loader = Dataloader(data(bad={3, 4, 17}), 20, quarantine=tmp_path / "bad.jsonl", mesh=FOUR)
    for step, batch in enumerate(loader):
        check(loader, batch, step, {3, 4, 17})


def test_prometheus_counts_them() -> None:
    from urllib.request import urlopen

    loader = Dataloader(data(), 60, on_error=LOOSE, mesh=FOUR)
    with prometheus.serve(loader) as exporter, loader.iterate() as batches:
        next(batches)
        assert f"loadax_masked_rows_total {float(len(BAD))}" in urlopen(exporter.url, timeout=HANG).read().decode()


def loader_of(**options: Any) -> Dataloader:
    return Dataloader(from_arrays({"x": np.arange(ROWS)}), 8, **options)


NOT_READ = r"^keep_on_device: all rows are read once, .*; leave it out, or on_error"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (loader_of, {"on_error": "skip"}, r"^on_error='skip': pass 'raise', 'mask', or loadax.MaskErrors\(…\)$"),
        (loader_of, {"on_error": None}, r"^on_error=None: pass 'raise', 'mask'"),
        (loader_of, {"quarantine": 3}, r"^quarantine=3: pass the record of MaskErrors, or row ids$"),
        (loader_of, {"quarantine": ""}, r"^quarantine='' is empty: pass the record of MaskErrors, or row ids$"),
        (loader_of, {"quarantine": [60]}, r"^a row of quarantine=60: "),
        (loader_of, {"quarantine": "no/such.jsonl"}, r"^quarantine='no/such.jsonl': there is no such file; pass the"),
        (loader_of, {"quarantine": [1], "keep_on_device": True}, NOT_READ),
        (loader_of, {"on_error": "mask", "keep_on_device": True}, NOT_READ),
        (MaskErrors, {"max_in_a_row": 0}, r"^max_in_a_row=0: "),
        (MaskErrors, {"max_share": 2}, r"^max_share=2: pass a number from 0 to 1$"),
        (MaskErrors, {"max_share": "1%"}, r"^max_share='1%': pass a number from 0 to 1$"),
        (MaskErrors, {"max_share": True}, r"^max_share=True: pass a number from 0 to 1$"),
        (MaskErrors, {"record": 3}, r"^record=3 is an int: pass the path of a file, as a str or a pathlib.Path$"),
        (MaskErrors, {"record": ""}, r"^record='' is empty: pass the path of a file$"),
    ],
)
def test_arguments_that_can_not_be_used(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oops\n", r"1 of .*bad.jsonl is not a record of a masked row: 'oops'; pass the"),
        ('{"id": 1}\n', r"1 of .* is not a record"),
        ("[1]\n", r"1 of .* is not a record"),
        ('{"id": 1, "rows": 7}\n', r"1 .* is about row 1 of a dataset with 7 rows, and this one "),
        ('{"id": 99, "rows": 60}\n', r"1 .* is about row 99 of a dataset with 60 rows"),
    ],
)
def test_a_record_that_is_none_of_this_dataset(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(ArgumentError, match=f"^quarantine: line {message}"):
        loader_of(quarantine=tmp_path / "bad.jsonl")


@pytest.mark.parametrize("record", ["no/bad.jsonl", ".", "s3://bucket/bad.jsonl"])
def test_a_record_that_can_not_be_written(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=rf"^record='{record}'.* pass the path of a (local )?file"):
        Dataloader(data(), 16, on_error=MaskErrors(record=record))


@pytest.mark.parametrize("record", ["{folder}/bad.jsonl", "~/bad.jsonl"])
def test_one_record_for_all_runs(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    record = record.format(folder=tmp_path)
    options: dict[str, Any] = {"on_error": MaskErrors(record=record, max_share=1), "quarantine": record}
    for bad, masked in ((set(), 0), (BAD, len(BAD)), (BAD, 0)):
        with Dataloader(data(bad=bad), 20, mesh=FOUR, **options).iterate() as batches:
            for _ in batches:
                pass
            assert batches.stats().masked == masked
    assert [file.name for file in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.parametrize(
    ("example", "problem"),
    [({"mask": np.ones(16, bool)}, "already has the key 'mask'"), (np.ones(16), "is one bare array")],
)
@pytest.mark.parametrize("options", [{"on_error": "mask"}, {"quarantine": [1]}])
def test_examples_without_room_for_a_mask(example: Any, problem: str, options: dict[str, Any]) -> None:
    message = rf"^a leaf 'mask' .* an example {problem}; make examples dicts .* leave out .* on_error= and quarantine="
    with pytest.raises(ArgumentError, match=message):
        Dataloader(from_arrays(example), 8, **options)
    Dataloader(from_arrays(example).map(lambda row: {"x": row["mask"] if isinstance(row, dict) else row}), 8, **options)


JOINS: dict[str, Callable[[Dataset, Dataset], Dataset]] = {
    "mix": lambda one, other: mix([one, other], weights=[1, 1]),
    "concat": lambda one, other: concat([one, other]),
    "zip": lambda one, other: loadax.zip({"one": one, "other": other}),
}


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_a_part_whose_first_row_is_bad_needs_a_spec(join: Callable[[Dataset, Dataset], Dataset]) -> None:
    rows = from_arrays({"x": np.arange(16)})
    with pytest.raises(ValueError, match="row 0 is broken") as raised:
        Dataloader(join(rows, rows.map(fails(bad={0}))), 8, on_error=LOOSE)
    assert "if only some rows of this part fail, pass spec= to its maps" in "".join(raised.value.__notes__)
    loader = Dataloader(join(rows, rows.map(fails(bad={0}), spec={"x": np.int64(0)})), 8, on_error=LOOSE)
    assert sum(int(batch["mask"].sum()) for batch in loader) == len(loader.dataset) - 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for little."""
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def record_of(rows: set[int], record: Path, quarantine: Any = ()) -> None:
    """Masks and records rows."""
    masking = MaskErrors(max_in_a_row=ROWS, max_share=1, record=record)
    options: dict[str, Any] = {"on_error": masking, "num_workers": 1, "remainder": "pad", "quarantine": quarantine}
    list(Dataloader(data(bad=rows), 8, **options))


def all_but(rows: set[int], quarantine: Any) -> None:
    """Reads all rows but those in quarantine, which are to be these."""
    list(Dataloader(data(bad=rows), 8, quarantine=quarantine, remainder="pad"))


WRITTEN = "the record of masked rows, can't be written: {}; make room on its disk, and start again from the last saved"


def test_record_of_masked_rows_survives_a_full_disk(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What could be recorded is never read again, and later runs record more."""
    (small_disk / "other").write_bytes(bytes(4096))
    record, bad = small_disk / "bad.jsonl", set(range(ROWS - 1))
    with pytest.raises(StorageError, match=re.escape(f"{record}, {WRITTEN.format('No space left on device')}")):
        record_of(bad, record)
    assert not record.read_bytes().endswith(b"\n"), "a part of a line"
    rows = {json.loads(line)["id"] for line in record.read_text().splitlines()[:-1]}
    assert rows
    all_but(rows, record)
    assert f"of {record} is unfinished, so its row is read again" in caplog.text
    (small_disk / "other").unlink()  # as the error says
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    record_of(bad - rows, record, quarantine=record)
    all_but(bad, record)


def test_record_line_after_a_partial_write_begins_a_new_line(tmp_path: Path) -> None:
    record = tmp_path / "bad.jsonl"
    lines = f"""
import resource
from loadax.errors import StorageError
from loadax.loader.mask_errors import append_record
resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))
for row in range(3):
    try:
        append_record({str(record)!r}, {{"id": row, "rows": 9, "error": 60 * "x"}})
    except StorageError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
append_record({str(record)!r}, {{"id": 8, "rows": 9}})
"""
    told = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True).stdout
    partial, nothing = told.splitlines()
    assert partial == nothing
    assert partial.startswith(f"{record}, {WRITTEN.format('File too large')}")
    first, cut, last = record.read_text().splitlines()
    assert (len(cut) < len(first), last) == (True, '{"id": 8, "rows": 9}')
    assert quarantined_rows(record, 9).tolist() == [0, 8]


@pytest.mark.parametrize("cut", range(1, 130, 8))
def test_every_unfinished_line_of_a_record_is_skipped_and_logged(
    cut: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if an older version went on in that line."""
    record = tmp_path / "bad.jsonl"
    record_of(BAD, record)
    lines = record.read_text().splitlines()
    for glue in ("", "\n", "\n\n"):
        caplog.clear()
        record.write_text("\n".join(lines[:-1]) + f"\n{lines[0][:cut]}{glue}{lines[-1]}\n")
        assert quarantined_rows(record, ROWS).tolist() == sorted(BAD)
        assert f"line {len(lines)} of {record} is unfinished" in caplog.text


@pytest.mark.parametrize("url", ["http://user:SECRET@host/r.jsonl", "s3://bucket/r.jsonl?token=SECRET"])
@pytest.mark.parametrize("kind", [str, Path])
def test_record_and_quarantine_refuse_urls_without_their_secrets(kind: type, url: str) -> None:
    """Of a pathlib.Path, one slash is left."""
    for give in (lambda: MaskErrors(record=kind(url)), lambda: Dataloader(data(), 8, quarantine=kind(url))):
        with pytest.raises(
            ArgumentError, match=r"(record|quarantine)='(http|s3)://.* is a URL: pass .* in a local folder"
        ) as caught:
            give()
        assert "SECRET" not in "".join(traceback.format_exception(caught.value))
