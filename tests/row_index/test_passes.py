"""Passes over all rows are kept when they are interrupted, and shared by all that use the folder."""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadax import Dataset, from_jsonl, from_npy, from_parquet, from_source
from loadax.core.distributed import Process
from loadax.errors import ArgumentError, SourceError, WorkerError
from loadax.kept import kept_pass, parts, pass_work
from loadax.kept.parts import PartsFolder
from loadax.row_index.scan import RowWork, row_spans
from loadax.work.worker import PayloadSource
from loadax.writing.data_fingerprint import spread
from tests.limits import HANG, until
from tests.row_index.filters import SMALL, VALUES, data, files, rows_of, small

ROOT = Path(__file__).parents[2]
SLOW = """
import os, sys, time, loadax, numpy as np
from pathlib import Path
Path(sys.argv[2]).touch()
ready = Path(sys.argv[1] + ".ready")
ready.mkdir(exist_ok=True)
(ready / str(os.getpid())).touch()
while len(list(ready.iterdir())) < int(sys.argv[-1]):  # for other programs
    time.sleep(0.01)
def slow(row):
    with open(sys.argv[2], "a") as calls:
        calls.write(f"{row}\\n")
    time.sleep(0.004)
    return row % 3 == 0
def tokens(row):
    slow(row)
    return np.arange(row % 5)
data = loadax.from_source(range(1000))
if sys.argv[3] == "pack":
    data.map(tokens).pack(8, index=sys.argv[1], key="v1")
elif sys.argv[3] == "split_by":
    data.split_by(slow, 0.5, index=sys.argv[1])
else:
    data.filter(slow, "v1", index=sys.argv[1])
"""


def start(index: Path, calls: Path, verb: str, together: int = 1) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SLOW, str(index), str(calls), verb, str(together)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "filter.json"}


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["filter", "split_by", "pack"])
def test_killed_pass_repeats_no_finished_part(verb: str, tmp_path: Path) -> None:
    whole, index, calls = tmp_path / "whole", tmp_path / "index", tmp_path / "calls"
    with start(whole, tmp_path / "all calls", verb) as process:
        assert process.wait(HANG) == 0
    kept = 0
    for _ in range(3):
        with start(index, calls, verb) as process:
            until(lambda kept=kept: len([*index.glob("*.parts/*.npz")]) > kept + 5)  # type: ignore[misc]
            process.kill()
        kept = len([*index.glob("*.parts/*.npz")])
    with start(index, calls, verb) as process:
        assert process.wait(HANG) == 0
    rows = calls.read_text().split()
    sample = len((tmp_path / "all calls").read_text().split()) - 1000
    assert {*rows} == {*map(str, range(1000))}
    assert len(rows) <= 1000 + 4 * sample + 3 * 16 * 8  # of each killed pass, what its threads worked on
    assert sorted(contents(index)) == sorted(contents(whole))
    assert contents(index) == contents(whole)


@pytest.mark.processes
def test_programs_that_share_a_folder_read_each_row_once(tmp_path: Path) -> None:
    index, logs = tmp_path / "index", [tmp_path / name for name in "abc"]
    processes = [start(index, calls, "filter", len(logs)) for calls in logs]
    for process in processes:
        assert process.wait(HANG) == 0
        assert process.stderr is not None
        process.stderr.close()
    rows = [row for calls in logs for row in calls.read_text().split()]
    assert len({*rows}) == 1000
    assert len(rows) <= 1000 + 3 * 64  # the samples of contents
    assert sum(calls.read_text().count("\n") > 64 for calls in logs) > 1


@pytest.mark.processes
def test_parts_of_a_killed_program_are_taken_over(tmp_path: Path) -> None:
    index = tmp_path / "index"
    with start(index, tmp_path / "a", "filter", 2) as killed, start(index, tmp_path / "b", "filter", 2) as other:
        until(lambda: len([*index.glob("*.parts/*.npz")]) > 5)
        killed.kill()
        killed.wait()
        assert other.wait(HANG) == 0
    assert sorted(path.suffix for path in index.iterdir()) == [".json", ".npy"]


def test_silent_process_of_another_host_is_dead_after_a_while(tmp_path: Path) -> None:
    (tmp_path / "3.claim").symlink_to("host.1.abc")
    (tmp_path / "host.1.abc.alive").touch()
    shared = PartsFolder(tmp_path, "filter", 4)
    with shared.joined():
        assert [shared.claim() for _ in range(4)] == [0, 1, 2, None]
        assert not shared.is_complete()
        old = (tmp_path / "host.1.abc.alive").stat().st_mtime - parts.DEAD - 1
        os.utime(tmp_path / "host.1.abc.alive", (old, old))
        shared._next_look = 0.0
        assert shared.claim() == 3
    assert files(tmp_path) == ["host.1.abc.alive"]


@pytest.mark.parametrize("claim", ["host.1.abc", ""])
def test_claim_in_a_copied_folder_is_dead_after_a_while(claim: str, tmp_path: Path) -> None:
    (tmp_path / "0.claim").write_text(claim)
    os.utime(tmp_path / "0.claim", (0, 0))
    copied = PartsFolder(tmp_path, "filter", 1)
    with copied.joined():
        assert copied.claim() == 0


def test_file_system_without_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("loadax.kept.parts.os.symlink", refused)
    with pytest.raises(SourceError, match=r"0\.claim can't be made: .*not permitted; pass a folder on a file system"):
        data().filter(small, index=tmp_path)


def interrupted(index: Path, rows: int = 400, key: str = "v1") -> None:
    calls: list[int] = []

    def fails(example: Any) -> bool:
        calls.append(1)
        if len(calls) > rows:
            raise KeyError("stop")
        return small(example)

    with pytest.raises(KeyError):
        data().filter(fails, key, index=index, workers=1)


def test_unfinished_lengths_of_a_stopped_pass_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.packing.documents.DOCUMENTS_PER_READ", 4)
    monkeypatch.setattr("loadax.packing.documents.part_size", lambda *_: 64)
    begun, fails = threading.Event(), True

    def tokens(row: int) -> Any:
        if fails and row == 65:  # of the second part
            begun.set()
        if fails and row == 1:
            assert begun.wait(HANG)
            raise KeyError("stop")
        sleep(0.005 * fails)
        return np.arange(1 + row % 5)

    documents = from_source(range(200)).map(tokens)
    with pytest.raises(KeyError):
        len(documents.pack(8, index=tmp_path, key="v1"))
    fails = False
    assert len(documents.pack(8, index=tmp_path, key="v1")) == len(documents.pack(8))


@pytest.mark.parametrize("damage", [b"", b"PK\3\4" + bytes(60), None])
def test_damaged_part_is_computed_again(damage: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(tmp_path)
    part = next(tmp_path.glob("*.parts/7.npz"))
    part.write_bytes(part.read_bytes()[:-30] if damage is None else damage)
    assert rows_of(data().filter(small, "v1", index=tmp_path)) == SMALL
    assert f"{part} is damaged" in caplog.text
    assert len(files(tmp_path)) == 2


def test_unfinished_parts_of_another_function_are_deleted_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(tmp_path)
    interrupted(tmp_path, key="v2")
    assert len([*tmp_path.glob("*.parts")]) == 2
    assert rows_of(data().filter(small, "v1", index=tmp_path)) == SMALL
    text = "has unfinished parts of another filter(), of which function or key differs; they are deleted when this one"
    assert text in caplog.text
    assert not [*tmp_path.glob("*.parts")]


def test_folder_in_use_by_another_function_is_refused(tmp_path: Path) -> None:
    begun, over = threading.Event(), threading.Event()

    def waits(example: Any) -> bool:
        begun.set()
        return over.wait(HANG)

    thread = threading.Thread(target=lambda: data().filter(waits, "waits", index=tmp_path))
    thread.start()
    try:
        assert begun.wait(HANG)
        message = rf"index='{tmp_path}' is in use by another filter\(\), of which function or key differs; pass each"
        with pytest.raises(ArgumentError, match=message):
            data().filter(small, "small", index=tmp_path)
        assert rows_of(data().filter(small, "small", index=tmp_path / "own")) == SMALL  # as it says
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "arrays",
    [
        {"values": np.zeros(8)},
        {"values": np.array([7, 5])},
        {"values": np.zeros((2, 2), int)},
        {"lengths": np.arange(3)},
    ],
    ids=["dtype", "order", "shape", "name"],
)
def test_part_of_another_pass_is_not_merged(arrays: dict[str, Any], tmp_path: Path) -> None:
    interrupted(tmp_path)
    np.savez(next(tmp_path.glob("*.parts/7.npz")), **arrays)
    message = r"filter-.*\.parts has parts that are not of this pass \(.+\); delete this folder, and call again"
    with pytest.raises(SourceError, match=message) as caught:
        data().filter(small, "v1", index=tmp_path)
    shutil.rmtree(str(caught.value).partition(" has")[0])  # as it says
    assert rows_of(data().filter(small, "v1", index=tmp_path)) == SMALL


def test_lengths_of_another_pass_are_not_merged(tmp_path: Path) -> None:
    def fails(row: int) -> Any:
        if row == 300:
            raise KeyError("stop")
        return np.arange(row % 5)

    with pytest.raises(KeyError):
        from_source(range(400)).map(fails).pack(8, index=tmp_path, key="v1")
    np.savez(next(tmp_path.glob("*.parts/1.npz")), lengths=np.arange(3))
    with pytest.raises(SourceError, match=r"not of this pass \(lengths has \d+ values, not 400\); delete"):
        from_source(range(400)).map(lambda row: np.arange(row % 5)).pack(8, index=tmp_path, key="v1")


FULL = """
import resource, signal, sys, numpy as np, loadax
from concurrent.futures import ThreadPoolExecutor
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
data = loadax.from_source(range(100_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
executor = (lambda: ThreadPoolExecutor(2)) if sys.argv[3] == "executor" else None
try:
    data.filter(lambda row: True, index=sys.argv[1], executor=executor)
except loadax.errors.SourceError as error:
    print(error)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "limit"), [("threads", 4096), ("executor", 4096), ("executor", 1024)])
def test_full_disk_is_a_named_error(kind: str, limit: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), str(limit), kind]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=HANG, check=True).stdout
    file = r"\d+\.npz" if limit == 4096 else r"the payload in .*\.parts"
    assert re.search(rf"{file} can't be written: \[Errno 27\] File too large; free space, and call again", said)
    assert not [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]


# Executors


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


def dies_once(row: int) -> bool:
    marker = Path(os.environ["LOADAX_TEST_MARKER"])
    if row == 500 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return row % 3 == 0


def dies(row: int) -> bool:
    if row == 500:
        os.kill(os.getpid(), signal.SIGKILL)
    return row % 3 == 0


def numbered() -> Dataset:
    return from_source(range(1000))


@pytest.mark.processes
def test_process_pool_gives_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADAX_TEST_MARKER", str(tmp_path / "died"))
    kept = numbered().filter(dies_once, index=tmp_path / "pool", executor=spawned)
    assert rows_of(kept) == list(range(0, 1000, 3))
    assert (tmp_path / "died").exists()
    numbered().filter(dies_once, index=tmp_path / "threads")
    assert contents(tmp_path / "pool") == contents(tmp_path / "threads")


@pytest.mark.processes
def test_lost_tasks_are_given_up(tmp_path: Path) -> None:
    # A pool that breaks loses all of its tasks: either one of them for the last time, or too many in a row.
    with pytest.raises(WorkerError, match=r"has lost task.*( 4 times| 5 times in a row).*: BrokenProcessPool"):
        numbered().filter(dies, index=tmp_path, executor=spawned)
    with pytest.raises(WorkerError, match=r"ProcessPoolExecutor can't be used any more .*=lambda: ProcessPoolExec"):
        numbered().filter(dies, index=tmp_path, executor=spawned())
    assert rows_of(numbered().filter(lambda row: row % 3 == 0, index=tmp_path)) == list(range(0, 1000, 3))


@pytest.mark.parametrize("verb", ["filter", "split_by", "pack"])
def test_every_pass_takes_an_executor(verb: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        if verb == "pack":
            documents = from_source([np.arange(size % 7) for size in range(200)])
            for folder, arguments in (("a", {"executor": executor}), ("b", {})):
                documents.pack(8, index=tmp_path / folder, **arguments)  # type: ignore[arg-type]
        elif verb == "filter":
            data().filter(small, index=tmp_path / "a", executor=lambda: ThreadPoolExecutor(1))
            data().filter(small, index=tmp_path / "b")
        else:
            data().split_by("user", 0.5, index=tmp_path / "a", executor=executor)
            data().split_by("user", 0.5, index=tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (4, "executor=4 is not an executor; pass an instance of concurrent.futures.Executor, or a function"),
        (ThreadPoolExecutor, r"pass a function that makes one: executor=lambda: ThreadPoolExecutor\(…\)"),
    ],
)
def test_what_is_no_executor_is_refused(executor: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        data().filter(small, index=tmp_path, executor=executor)


def test_dask_client_is_told_apart(tmp_path: Path) -> None:
    class Client:
        def get_executor(self) -> None: ...

    with pytest.raises(ArgumentError, match=r"is not an executor; pass executor=client.get_executor\(\)"):
        data().filter(small, index=tmp_path, executor=Client())  # type: ignore[arg-type]


def test_executor_needs_an_index() -> None:
    with pytest.raises(ArgumentError, match="executor= needs index=, a folder that all its workers share"):
        data().filter(small, executor=lambda: ThreadPoolExecutor(1))


def test_what_can_not_be_pickled_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"filter .* can't be sent to the workers of the executor: .*lock"):
        data().filter(lambda row: bool(lock), "v1", index=tmp_path, executor=lambda: ThreadPoolExecutor(1))


def test_error_of_the_function_names_its_row(tmp_path: Path) -> None:
    def fails(example: Any) -> bool:
        if example["x"] == VALUES[123]:
            raise KeyError("no such thing")
        return True

    with pytest.raises(KeyError) as caught:
        data().filter(fails, index=tmp_path, executor=lambda: ThreadPoolExecutor(1))
    assert any("in a worker of the executor" in note for note in caught.value.__notes__)
    assert any("on row " in note for note in caught.value.__notes__)


def test_other_version_and_missing_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = lambda: ThreadPoolExecutor(1)  # noqa: E731
    with monkeypatch.context() as patched:
        others = iter([{"loadax": "9", "Python": "3.0"}])
        patched.setattr("loadax.kept.pass_work.versions", lambda: next(others))
        with pytest.raises(ArgumentError, match=r"has loadax .* and Python .*, and this process loadax 9 .*; install"):
            data().filter(small, index=tmp_path, executor=executor)
    make = pass_work.payload_of_pass

    @contextmanager
    def elsewhere(*arguments: Any) -> Iterator[PayloadSource]:
        with make(*arguments) as made:
            assert made.content is not None
            yield made._replace(content=(str(tmp_path / "missing"), *made.content[1:]))

    monkeypatch.setattr("loadax.kept.kept_pass.payload_of_pass", elsewhere)
    with pytest.raises(ArgumentError, match=r"can't read .*missing \(No such file or directory\); pass a folder that"):
        data().filter(small, index=tmp_path, executor=executor)


HIDE = """
import sys
import textwrap
for name in [name for name in sys.modules if name.partition(".")[0] == "loadax"]:
    del sys.modules[name]
sys.modules["loadax"] = None
"""


@pytest.mark.processes
def test_workers_without_loadax_are_named(tmp_path: Path) -> None:
    def without_loadax() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), exec, (HIDE,))

    with pytest.raises(ArgumentError, match=r"workers of the executor can't import loadax \(.+\); install it there"):
        numbered().filter(small, "v1", index=tmp_path, executor=without_loadax)


@pytest.mark.parametrize("name", ["x.npy", "a.jsonl"])
def test_file_that_workers_lack_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, make = tmp_path / name, pass_work.payload_of_pass
    if name == "x.npy":
        np.save(path, np.arange(2000))
        rows = from_npy(path)
    else:
        path.write_text('{"x": 1}\n' * 2000)
        rows = from_jsonl(path)

    @contextmanager
    def hidden(*arguments: Any) -> Iterator[PayloadSource]:
        with make(*arguments) as made:
            path.rename(tmp_path / "elsewhere")
            yield made

    monkeypatch.setattr("loadax.kept.kept_pass.payload_of_pass", hidden)
    with pytest.raises(SourceError, match=rf"{path}: .* \[?.*No such file") as caught:
        rows.filter(bool, "v1", index=tmp_path / "i", executor=lambda: ThreadPoolExecutor(1))
    assert f", on {socket.gethostname()}" in "".join(caught.value.__notes__)


def test_recipe_has_mapped_arrays_as_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(1 << 20))
    sizes: list[int] = []
    make = pass_work.payload_of_pass

    @contextmanager
    def measured(*arguments: Any) -> Iterator[PayloadSource]:
        with make(*arguments) as made:
            assert made.content is not None
            sizes.append(Path(made.content[0]).stat().st_size)
            yield made

    monkeypatch.setattr("loadax.kept.kept_pass.payload_of_pass", measured)
    kept = from_npy(tmp_path / "x.npy").filter(
        lambda value: value > 1000, index=tmp_path / "i", executor=lambda: ThreadPoolExecutor(1)
    )
    assert len(kept) == (1 << 20) - 1001
    assert sizes[0] < 1 << 16


def test_parts_that_were_cut_in_another_way_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(tmp_path)
    monkeypatch.setattr("loadax.kept.kept_pass.FEW_PARTS", 40)  # as another version of loadax might
    assert rows_of(data().filter(small, "v1", index=tmp_path)) == SMALL
    assert "of which parts differs; they are deleted now" in caplog.text


def test_chunks_larger_than_parts_are_parts_of_their_own(tmp_path: Path) -> None:
    table = pa.table({"x": np.zeros(2_000_000, np.int8)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50_000)
    reader = from_parquet(tmp_path / "x.parquet").reader
    work = RowWork(row_spans(reader, np.ones(2_000_000, bool)), np.array, np.int64, "filter")
    assert work.sizes == [50_000] * 40


def test_process_of_a_run_claims_its_share_for_its_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[int] = []

    class Engine(ThreadPoolExecutor):
        def submit(self, *arguments: Any) -> Any:  # type: ignore[override]
            claims.append(len([*tmp_path.glob("*.parts/*.claim")]))
            return super().submit(*arguments)

    monkeypatch.setattr("loadax.kept.kept_pass.this_process", lambda: Process(0, 4))
    assert rows_of(data().filter(small, "v1", index=tmp_path, executor=lambda: Engine(1))) == SMALL
    assert (len(claims), max(claims)) == (63, 16)  # parts, a quarter of them


def test_folders_that_only_look_like_those_of_a_pass_stay(tmp_path: Path) -> None:
    mine, longer = tmp_path / "filter-mine.parts", tmp_path / f"filter-by-leaf-{'0' * 16}.parts"
    for folder in (mine, longer):
        folder.mkdir()
        (folder / "notes.txt").touch()
    data().filter(small, "v1", index=tmp_path)
    assert files(mine) == files(longer) == ["notes.txt"]


@pytest.mark.parametrize("left", ["0" * 16, "f" * 16])
def test_processes_that_delete_the_same_leftovers_at_once_do_not_disturb_each_other(left: str, tmp_path: Path) -> None:
    path = tmp_path / f"filter-{'f' * 16}.parts"

    def prepare(barrier: threading.Barrier) -> None:
        barrier.wait()
        with suppress(parts.ChangedError):
            kept_pass._prepare(path, "filter", {"data": "new"})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(20):
                old = tmp_path / f"filter-{left}.parts"
                shutil.rmtree(tmp_path)
                old.mkdir(parents=True)
                for part in range(30):
                    (old / f"{part}.npz").touch()
                (old / "pass.json").write_text('{"data": "old"}')
                barrier = threading.Barrier(4)
                for prepared in [pool.submit(prepare, barrier) for _ in range(4)]:
                    prepared.result()
    finally:
        sys.setswitchinterval(interval)


def test_interrupted_pass_leaves_the_folder_to_another_process(tmp_path: Path) -> None:
    def interrupts(_: Any) -> bool:
        (folder,) = tmp_path.glob("*.parts")
        (folder / "host.1.abc.alive").touch()
        raise KeyError("stop")

    with pytest.raises(KeyError):
        data().filter(interrupts, "v1", index=tmp_path, workers=1)
    (folder,) = tmp_path.glob("*.parts")
    assert files(folder) == ["host.1.abc.alive", "pass.json"]


@pytest.mark.processes
def test_script_without_a_guard_ends_with_the_advice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    line = "data = loadax.from_source(range(100)).filter(keep, index='index', executor=pool)\nprint(len(data))\n"
    head = """
import loadax, multiprocessing
from concurrent.futures import ProcessPoolExecutor
def keep(row):
    return row % 2 == 0
def pool():
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
"""

    def run(text: str) -> "subprocess.CompletedProcess[str]":
        script.write_text(head + text)
        command = [sys.executable, script.name]
        path = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=HANG, check=False
        )

    stopped = run(line)
    assert stopped.returncode == 1
    assert 'under `if __name__ == "__main__":`' in stopped.stderr
    assert "WorkerError: the executor has lost task " in stopped.stderr
    guarded = run('if __name__ == "__main__":\n' + textwrap.indent(line, "    "))
    assert (guarded.stdout, guarded.returncode) == ("50\n", 0)


def test_worker_reads_a_file_again_that_was_replaced_after_an_interrupted_pass(tmp_path: Path) -> None:
    rows, file, index = 2000, tmp_path / "x.npy", tmp_path / "index"
    np.save(file, np.zeros(rows, np.int64))
    dies = tmp_path / "dies"
    dies.touch()

    def is_one(value: Any) -> bool:
        if dies.exists():
            raise KeyError("stop")
        return bool(value == 1)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError):
            from_npy(file).filter(is_one, "v1", index=index, executor=pool)
        pool.submit(int).result()  # tasks that had begun have failed too, and keep no part
        dies.unlink()
        changed = np.ones(rows, np.int64)
        changed[spread(rows, 64)] = 0  # the rows by which loadax tells contents apart
        np.save(tmp_path / "y.npy", changed)
        (tmp_path / "y.npy").replace(file)
        assert len(from_npy(file).filter(is_one, "v1", index=index, executor=pool)) == changed.sum()


@pytest.mark.parametrize("target", ["index", f"index/filter-{'f' * 16}.parts"])
def test_place_of_the_parts_that_is_a_broken_link_is_a_named_error(target: str, tmp_path: Path) -> None:
    link = tmp_path / target
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"can't be written: .*; pass another path"):
        kept_pass._prepare(tmp_path / "index" / f"filter-{'f' * 16}.parts", "filter", {"data": "new"})
