"""Faults of processes: workers killed and stopped, programs killed and preempted, disks full, descriptors gone."""

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
import psutil

import loadax
from loadax import Dataloader
from tests.chaos import hosts
from tests.chaos.judge import Count, rows_of
from tests.forkserver import Child, run
from tests.limits import HANG

ROWS, BATCH, EPOCHS = 64, 8, 4
PAUSE = 0.05  # seconds that a stopped worker rests


def one_device() -> Any:
    """A mesh of one device."""
    return jax.make_mesh((1,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])


def workers_hit(count: Count, random: Random, hit: Callable[[psutil.Process], None]) -> int:
    """Workers are hit in mid-run, and every row comes once an epoch all the same."""
    dataset, ids, faults = loadax.from_arrays(rows_of(ROWS)).map(_same), Counter[int](), 0
    loader = Dataloader(
        dataset.shuffle(seed=random.randrange(100)),
        BATCH,
        mesh=one_device(),
        num_epochs=EPOCHS,
        num_workers=2,
        worker_type="process",
    )
    with loader.iterate() as batches:
        for step, batch in enumerate(batches):
            count.batch(batch, ids)
            if step % 6 == 1 and (workers := _workers()):
                hit(random.choice(workers))
                faults += 1
    count.epoch(ids, [row for row in range(1, ROWS + 1) for _ in range(EPOCHS)])
    return faults


def _workers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if child.name() != "test-forkserver"]


def workers_killed(count: Count, folder: Path, random: Random) -> int:
    return workers_hit(count, random, lambda worker: worker.kill())


def workers_stopped(count: Count, folder: Path, random: Random) -> int:
    """By SIGSTOP; they go on later."""

    def stop(worker: psutil.Process) -> None:
        worker.suspend()
        timer = threading.Timer(PAUSE, _resume, [worker])
        timers.append(timer)
        timer.start()

    timers: list[threading.Timer] = []
    faults = workers_hit(count, random, stop)
    for timer in timers:
        timer.join()
    return faults


def _resume(worker: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        worker.resume()


def _same(example: Any) -> Any:
    return example


# Programs of their own.


def preempted(count: Count, folder: Path, random: Random) -> int:
    """A program is killed again and again, and goes on from its last state: each row comes once an epoch."""
    log, faults = folder / f"preempted-{random.random()}", 0
    code = f"from tests.chaos.processes import train; train({str(log)!r})"
    while True:
        with Child(["-c", code]) as child:
            if faults < 6:
                deadline, before = time.monotonic() + HANG, _steps(log)
                wanted = before + random.randrange(1, 6)
                while child.poll() is None and _steps(log) < wanted and time.monotonic() < deadline:
                    time.sleep(0.002)
                child.send_signal(random.choice((signal.SIGKILL, signal.SIGTERM)))
            if child.wait(HANG) == 0:
                break
            faults += 1
    ids = Counter[int]()
    for line in log.read_text().splitlines():
        ids.update(json.loads(line)["ids"])
    count.epoch(ids, [row for row in range(1, ROWS + 1) for _ in range(EPOCHS)])
    return faults


def _steps(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def train(path: str) -> None:
    """Appends the ids of each batch, with the state after it, as one line."""
    log = Path(path)
    content = log.read_bytes() if log.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:  # killed within a line
        log.write_bytes(whole)
    start = json.loads(whole.splitlines()[-1])["state"] if whole else 0
    dataset = loadax.from_arrays(rows_of(ROWS)).shuffle(seed=3)
    loader = Dataloader(dataset, BATCH, mesh=one_device(), num_epochs=EPOCHS, num_workers=1)
    with loader.iterate(start=start) as batches, log.open("ab", buffering=0) as file:
        for batch in batches:
            line = {"ids": np.asarray(batch["id"]).tolist(), "state": batches.get_state()}
            file.write(json.dumps(line).encode() + b"\n")
            time.sleep(0.002)


def judge_program(count: Count, name: str, code: str) -> None:
    """A program must end with the word "clear"."""
    done = run(["-c", f"from tests.chaos.processes import fill, starve; {code}"])
    if done.stdout.strip().splitlines()[-1:] == ["clear"]:
        count.errors += 1
    else:
        count.unclear += 1
        count.told.append(f"{name}: {done.stdout}{done.stderr[-500:]}")


def disk_full(count: Count, folder: Path, random: Random) -> int:
    """What is written does not fit: a clear error, and nothing that opens with rows missing."""
    with small_disk(folder) as disk:
        for verb in ("write", "cache", "index"):
            judge_program(count, verb, f"fill({verb!r}, {str(disk)!r}, {disk == folder})")
    return 3


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A tmpfs of 64 KiB where one can be mounted; else the folder itself, and files are limited instead."""
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, check=False
    )
    try:
        yield disk if mount.returncode == 0 else folder
    finally:
        if mount.returncode == 0:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(verb: str, folder: str, limit: bool) -> None:
    """Writes more than fits, and prints "clear" if the error names the place and nothing is half there."""
    import resource

    from loadax.errors import LoadaxError

    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    path = Path(folder, verb)
    dataset = loadax.from_arrays({"x": np.random.default_rng(0).random((20_000, 16))})
    try:
        match verb:
            case "write":
                loadax.write_zarr(dataset, path, progress=False)
            case "cache":
                dataset.cache(path, progress=False)
            case _:
                dataset.filter(lambda example: True, "all", index=path, progress=False)
    except (LoadaxError, OSError) as error:
        try:
            left = len(loadax.from_zarr(path))
        except LoadaxError:
            left = 0
        print("clear" if str(path) in str(error) and not left else f"{error}, {left} rows left")
    else:
        print("no error")


def descriptors_gone(count: Count, folder: Path, random: Random) -> int:
    """No file can be opened any more: a clear error; and when there are some again, the rows are right."""
    for reader in ("zarr", "images"):
        judge_program(count, reader, f"starve({reader!r}, {str(folder)!r})")
    return 2


def starve(reader: str, folder: str) -> None:
    """Takes all descriptors away, reads, and reads again with them."""
    import resource

    from PIL import Image

    place = Path(folder, f"starved-{reader}-{os.getpid()}")
    if reader == "zarr":
        loadax.write_zarr(rows_of(ROWS), place, progress=False, chunk_rows=4)
        dataset = loadax.from_zarr(place)
    else:
        place.mkdir()
        for row in range(11):
            Image.new("RGB", (4, 4), (row, row, row)).save(place / f"{row:02}.png")
        dataset = loadax.from_images(place, size=(4, 4))
    loadax.write_zarr(rows_of(2), f"{place}-other", progress=False)
    loadax.from_zarr(f"{place}-other").read([1])  # what libraries open once
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(3, used - 1), hard))
    held: list[int] = []
    told = "no error"
    for row in (2, 6, 10):  # each in another file or chunk: a library may close a file late, and one read gets through
        while _take_descriptors(held):
            time.sleep(0.1)
        told = _try_row(dataset, row, place.name)
        if told != "no error":
            break
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    batch = dataset.read([2])
    right = batch["id"].tolist() == [3] if reader == "zarr" else int(batch["image"].max()) == 2
    print(told if right else "wrong rows afterwards")


def _try_row(dataset: loadax.Dataset, row: int, name: str) -> str:
    """Whether reading a row fails, and with an error that names the file."""
    try:
        dataset.read([row])
    except Exception as error:  # noqa: BLE001 - judged
        return "clear" if name in str(error) else f"{type(error).__name__}: {error}"
    return "no error"


def _take_descriptors(held: list[int]) -> bool:
    """Opens files until there is no descriptor left; whether there was one."""
    before = len(held)
    with suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    return len(held) > before


Run = Callable[[Count, Path, Random], int]
RUNS: dict[str, Run] = {
    "worker killed (SIGKILL)": workers_killed,
    "worker stopped for a while (SIGSTOP)": workers_stopped,
    "program killed or preempted": preempted,
    "disk full": disk_full,
    "descriptors gone": descriptors_gone,
    **hosts.RUNS,
}
