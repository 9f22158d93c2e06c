"""Plants 37 faults in rows of four formats, and compares a preflight with its run: `python -m tests.chaos.preflight`.

Law: the preflight finds the rows that the run masks, and no other; it costs at most a tenth more CPU than a pass that
reads and maps the rows and checks nothing; and whoever kills its driver, no row of a part that was finished is read
again.
"""

import argparse
import io
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import psutil
from PIL import Image

import loadax
from loadax import Dataloader, Dataset, MaskErrors
from loadax.kept.kept_pass import PassOptions, run_pass
from loadax.kept.parts import PartsInMemory
from loadax.loader.preflight.check_rows import CheckWork
from loadax.loader.preflight.plan_rows import plan_rows
from loadax.loader.preflight.preflight import _parts
from loadax.protocols import ArraySpec, Visits
from tests.engines import ROOT, engine_maker, worker_pids
from tests.limits import HANG, until
from tests.sources.shards.corpora import encoded, write_tar, write_tfrecord

BATCH = 80
FORMATS = ("jsonl", "tar", "tfrecord", "npy")
FAULTS = {"jsonl": 10, "tar": 9, "tfrecord": 9, "npy": 9}
WIDTH = 256
WORKERS = 2  # threads of the driver that is killed
SPEC = {"x": ArraySpec((64,), np.dtype(np.float32))}  # so that no row is read for it


@dataclass(frozen=True)
class Planted:
    """Data of four formats in a folder.

    Args:
        folder: The folder.
        rows: Rows of each format.
        faults: Rows that fail, of each format.
    """

    folder: Path
    rows: int
    faults: dict[str, list[int]]

    @property
    def failing(self) -> list[int]:
        """Row ids of the mixture that fail."""
        return [number * self.rows + row for number, name in enumerate(FORMATS) for row in self.faults[name]]


def plant(folder: Path, rows: int, seed: int, faults: bool = True) -> Planted:
    """Writes `rows` rows of each format, some of which fail: 37 in all."""
    random = Random(seed)
    planted = {name: sorted(random.sample(range(1, rows), count if faults else 0)) for name, count in FAULTS.items()}
    values = np.random.default_rng(seed).random((rows, WIDTH), np.float32)
    lines = [json.dumps({"x": row.tolist()}) for row in values[:, :64].round(4)]
    for row in planted["jsonl"]:
        lines[row] = lines[row][:-9]  # the line ends in the middle
    (folder / "x.jsonl").write_text("\n".join(lines))
    images = {f"{row:06}.jpg": jpeg(row) for row in range(rows)}
    for row in planted["tar"]:
        images[f"{row:06}.jpg"] = b"\xff\xd8 no image" + images[f"{row:06}.jpg"][12:]
    write_tar(folder / "x.tar", images)
    records = [encoded({"x": row}) for row in values]
    path = write_tfrecord(folder / "x.tfrecord", records)
    content = bytearray(path.read_bytes())
    size = len(records[0]) + 16
    assert len(content) == size * rows
    for row in planted["tfrecord"]:
        content[row * size + size // 2] ^= 4  # one bit, which the checksum tells
    path.write_bytes(content)
    array = np.repeat(values, 16, axis=1)
    array[planted["npy"], 7] = -1  # the map refuses it
    np.save(folder / "x.npy", array)
    return Planted(folder, rows, planted)


def jpeg(row: int) -> bytes:
    out = io.BytesIO()
    pixels = np.add.outer(np.arange(96) * (row % 7), np.arange(96) * (row % 5)).astype(np.uint8)
    Image.fromarray(np.stack([pixels] * 3, axis=-1)).save(out, "JPEG")
    return out.getvalue()


def opened(folder: Path, noted: "Noted | None" = None) -> Dataset:
    """The rows of the four formats, shuffled: each becomes {"x": float32[64]}. `noted`: notes what is read."""

    def wrap(name: str, function: Callable[[Any], Any]) -> Any:
        return noted.of(name, function) if noted else function

    is_noted = noted is not None
    lines = loadax.from_jsonl(folder / "x.jsonl", "x", dtypes={"x": "float32"})
    images = loadax.from_webdataset(folder / "x.tar").decode_images("jpg", size=32)
    records = loadax.from_tfrecord(folder / "x.tfrecord", features={"x": ("float32", (WIDTH,))})
    array = loadax.from_npy(folder / "x.npy")
    parts = [
        lines.map(wrap("jsonl", from_line), with_index=is_noted, spec=SPEC),
        images.map(wrap("tar", from_image), with_index=is_noted, spec=SPEC),
        records.map(wrap("tfrecord", from_record), with_index=is_noted, spec=SPEC),
        array.map(wrap("npy", from_array), with_index=is_noted, spec=SPEC),
    ]
    return loadax.concat(parts).shuffle(seed=3)


def from_line(row: Any) -> Any:
    return {"x": np.asarray(row["x"], np.float32)}


def from_image(row: Any) -> Any:
    return {"x": row["jpg"].reshape(-1)[:64].astype(np.float32)}


def from_record(row: Any) -> Any:
    return {"x": row["x"].reshape(64, -1).mean(1)}


def from_array(row: Any) -> Any:
    if row.min() < 0:
        raise ValueError("a negative value")
    return {"x": row.reshape(64, -1).mean(1)}


def loader_of(data: Dataset, epochs: int = 1) -> Dataloader:
    return Dataloader(data, BATCH, num_epochs=epochs, on_error=MaskErrors(max_in_a_row=100, max_share=1))


def masked_by_run(loader: Dataloader) -> list[int]:
    """Rows that a run masks."""
    found: set[int] = set()
    for step, batch in enumerate(loader.host_batches()):
        found |= {*loader.rows(step)[~batch["mask"]].tolist()}
    return sorted(found)


class PlainPass:
    """In place of `CheckWork`: reads and maps the same rows in the same parts, checks nothing and times nothing."""

    label = "plain"
    unit = "row"

    def __init__(self, work: CheckWork):
        self._work = work
        self.sizes = work.sizes

    def compute(self, part: int, _: Any) -> dict[str, Any]:
        portion, low, high = self._work.parts[part]
        for start in range(low, high, 256):
            visits: Visits = self._work.portions[portion].visits(start, min(start + 256, high))
            self._work.portions[portion].reader.read_visits(visits)
        return {}


def cpu_of(function: Callable[[], Any]) -> float:
    """CPU seconds of this process in a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


class Cost(NamedTuple):
    """CPU seconds of passes over the same rows, least of some turns.

    Args:
        plain: Of a plain pass over rows without faults.
        clean: Of a preflight over them.
        faulty: Of a preflight over all rows, with those that fail.
    """

    plain: float
    clean: float
    faulty: float

    def __str__(self) -> str:
        clean, faulty = self.clean / self.plain, self.faulty / self.plain
        return (
            f"CPU: a plain pass {self.plain:.2f} s, a preflight without faults {self.clean:.2f} s ({clean:.3f}), "
            f"with them {self.faulty:.2f} s ({faulty:.3f})"
        )


def cost(planted: Planted, workers: int, turns: int) -> Cost:
    """CPU seconds of plain passes and of preflights, by turns."""
    whole = loader_of(opened(planted.folder).exclude(planted.failing))
    every = loader_of(opened(planted.folder))

    def plain() -> None:
        planned = plan_rows(whole.phases, [(0, range(len(whole)))], [0])
        parts = tuple(_parts(planned.portions))
        work: Any = PlainPass(CheckWork(planned.portions, ({},), parts))
        run_pass(work, PartsInMemory(len(parts), lambda _: None), PassOptions(workers, None, False))

    def checked(loader: Dataloader) -> None:
        loader.preflight(workers=workers, progress=False)

    plain()  # imports, and files in the page cache
    seconds = [(cpu_of(plain), cpu_of(lambda: checked(whole)), cpu_of(lambda: checked(every))) for _ in range(turns)]
    return Cost(*map(min, zip(*seconds, strict=True)))


@dataclass(frozen=True)
class Noted:
    """Notes each row that a map gets, by its id among the rows of all formats.

    Args:
        log: File of the notes.
        rows: Rows of each format.
    """

    log: Path
    rows: int

    def of(self, name: str, function: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
        """A map that notes its rows."""
        first = FORMATS.index(name) * self.rows

        def noting(row: Any, number: int) -> Any:
            with self.log.open("a") as out:
                out.write(f"{first + number}\n")
            return function(row)

        return noting


def drive(folder: Path, index: Path, log: Path, rows: int, engine: str | None) -> None:
    """The program that is killed: a preflight that notes each row it reads."""
    executor = None
    if engine is not None:
        executor = engine_maker(engine)
    loader = loader_of(opened(folder, Noted(log, rows)))
    loader.preflight(executor=executor, index=index, key="chaos", workers=WORKERS, progress=False)


class Killed(NamedTuple):
    """What was found after a driver was killed.

    Args:
        finished: Parts that were finished.
        lines: Lines of the log.
    """

    finished: set[int]
    lines: int


def kill_drivers(planted: Planted, work: Path, start: Callable[[list[str]], Any], engine: str | None = None) -> int:
    """Kills the driver of a preflight three times, and checks that nothing is read again that was finished.

    Args:
        planted: The data.
        work: An empty folder.
        start: Starts a Python program, by its arguments.
        engine: What reads; None: threads of the driver.

    Returns:
        Number of rows that were read again, of parts that were not finished.
    """
    index, log = work / "index", work / "log"
    log.touch()
    arguments = ["-m", "tests.chaos.preflight", "--drive", str(planted.folder), str(index), str(log)]
    arguments += [str(planted.rows), *([engine] if engine else [])]
    whole = loader_of(opened(planted.folder)).preflight(progress=False)
    work_parts = rows_of_parts(planted)
    killed: list[Killed] = []
    for number in range(1, 5):
        driver = start(arguments)
        if number < 4:
            least = len(work_parts) * number // 4
            until(lambda least=least, driver=driver: len(finished(index)) >= least or driver.poll() is not None)  # type: ignore[misc]
            assert driver.poll() is None, "it ended before it was killed"
            workers = worker_pids(driver.pid)
            driver.kill()
            driver.wait()
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(worker).kill()
            killed.append(Killed(finished(index), len(log.read_text().splitlines())))
        else:
            assert driver.wait(HANG) == 0
    read = [int(line) for line in log.read_text().splitlines()]
    for kill in killed:
        done = {row for part in kill.finished for row in work_parts[part]}
        assert not done & {*read[kill.lines :]}, "a row of a finished part was read again"
    assert {*read} | {*planted.failing} == {*range(4 * planted.rows)}
    # Of each driver that was killed, the rows that were read again by later ones. Rows of a piece that has a fault are
    # read again by the same one.
    again, began = 0, 0
    for kill in killed:
        again += len({*read[began : kill.lines]} & {*read[kill.lines :]})
        began = kill.lines
    started = len(killed) * workers_of(engine) * max(map(len, work_parts))
    assert again <= started, "rows were read again of more parts than were being read"
    # the index has it all: nothing is read
    resumed = loader_of(opened(planted.folder, Noted(log, planted.rows))).preflight(
        index=index, key="chaos", progress=False
    )
    assert len(log.read_text().splitlines()) == len(read)
    assert resumed.quarantine() == whole.quarantine() == planted.failing
    return again


def workers_of(engine: str | None) -> int:
    """Number of parts that an engine reads at once."""
    if engine is None:
        return WORKERS
    return int(engine.partition(":")[2])


def rows_of_parts(planted: Planted) -> list[list[int]]:
    """Rows of each part of a preflight."""
    loader = loader_of(opened(planted.folder))
    (portion,) = plan_rows(loader.phases, [(0, range(len(loader)))], [0]).portions
    return [portion.visits(low, high).rows.tolist() for _, low, high in _parts([portion])]


def finished(index: Path) -> set[int]:
    return {int(path.stem) for path in index.glob("preflight-*.parts/*.npz")}


def main() -> None:
    """Runs the law with 25,000 rows of each format."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.preflight", description=__doc__)
    parser.add_argument("--rows", type=int, default=25_000, help="rows of each format (default: 25,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=5, help="turns that are timed (default: 5)")
    parser.add_argument("--engines", nargs="*", default=["threads", "processes:2"], help="what is killed")
    parser.add_argument("--drive", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        folder, index, log, rows, *engine = options.drive
        drive(Path(folder), Path(index), Path(log), int(rows), *engine or [None])
        return
    logging.getLogger("loadax").setLevel(logging.ERROR)  # the run tells each row that it masks
    with tempfile.TemporaryDirectory() as name:
        data = Path(name, "data")
        data.mkdir()
        planted = plant(data, options.rows, options.seed)
        loader = loader_of(opened(data))
        report = loader.preflight(progress=False)
        print(report)
        masks = masked_by_run(loader)
        assert report.quarantine() == masks == planted.failing
        print(f"{len(masks)} of {report.distinct:,} rows fail: those that were planted, and that the run masks")
        if options.turns:
            print(cost(planted, 2, options.turns), flush=True)
        for engine in options.engines:
            work = Path(name, engine.replace(":", "-"))
            work.mkdir()
            again = kill_drivers(planted, work, start_python, None if engine == "threads" else engine)
            print(f"{engine}: killed three times, {again} rows of unfinished parts were read again", flush=True)


def start_python(arguments: list[str]) -> Any:
    return subprocess.Popen([sys.executable, *arguments], cwd=ROOT)


if __name__ == "__main__":
    main()
