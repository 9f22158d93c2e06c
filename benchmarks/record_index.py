"""Time and memory of the index of tar files: `python benchmarks/record_index.py [--baseline COMMIT]`.

Members of 33 bytes, two an example, in one file and in ten, are indexed in a process of their own: a tenth of them, and
all. Printed are seconds of wall clock and of CPU, and the peak of resident memory above the start; the line through
both sizes, continued to 10^7 members; and the same of another commit, if one is passed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import loadax

ROOT = Path(__file__).parents[1]
SIZE, FAR = 33, 10_000_000


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1_000_000, help="number of members (default: 1,000,000)")
    parser.add_argument("--baseline", metavar="COMMIT", help="commit to measure too")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers to this file")
    parser.add_argument("--measure", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = {"this": ROOT}
        if options.baseline:
            packages[options.baseline] = folder / "baseline"
            archive = subprocess.run(
                ["git", "archive", options.baseline, "loadax"], cwd=ROOT, check=True, capture_output=True
            ).stdout
            packages[options.baseline].mkdir()
            subprocess.run(["tar", "-x"], input=archive, cwd=packages[options.baseline], check=True)
        write(folder / "warm", 10, 1)
        for files in (1, 10):
            counts = options.members // 10, options.members
            for count in counts:
                write(folder / f"{files}-{count}", count, files)
            for commit, package in packages.items():
                small, large = (in_process(package, folder / "warm", folder / f"{files}-{count}") for count in counts)
                steps = (FAR - counts[1]) / (counts[1] - counts[0])
                far = {key: large[key] + (large[key] - small[key]) * steps for key in large}
                for count, found in zip((*counts, FAR), (small, large, far), strict=True):
                    results.append({"commit": commit, "files": files, "extrapolated": found is far, **found})
                    print(
                        f"{commit:10} {files:3} files {count:>10,} members {found['seconds']:7.2f} s "
                        f"{found['cpu']:7.2f} s CPU {found['peak'] / count:7.1f} B a member"
                        f"{' (extrapolated)' if found is far else ''}",
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def in_process(package: Path, warm: Path, folder: Path) -> dict[str, float]:
    """Measures a folder in a process that imports loadax from `package`."""
    command = [sys.executable, __file__, "--measure", str(warm), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(printed)
    return found


def measure(warm: Path, folder: Path) -> dict[str, Any]:
    """Seconds of opening the tar files of a folder, and peak of resident memory in bytes above the start."""
    loadax.from_webdataset(warm, progress=False)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, began, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
    data = loadax.from_webdataset(folder, index=folder / os.urandom(4).hex(), progress=False)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "peak": memory("VmHWM") - before, "members": 2 * len(data)}


def memory(field: str) -> int:
    """Resident memory of this process in bytes: `VmRSS` now, `VmHWM` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def write(folder: Path, members: int, files: int) -> None:
    """Writes members of tar files, faster than Python's tarfile does."""
    folder.mkdir()
    for file in range(files):
        with (folder / f"{file:05}.tar").open("wb") as out:
            for number in range(file * members // files, (file + 1) * members // files):
                header = bytearray(512)
                header[:13] = b"%09d.%s" % (number // 2, (b"jpg", b"cls")[number % 2])
                header[124:136] = b"%011o\0" % SIZE
                header[156:157], header[257:265] = b"0", b"ustar\x0000"
                header[148:156] = b"%06o\0 " % (sum(header) + 8 * ord(" "))
                out.write(header + bytes(512))
            out.write(bytes(1024))


if __name__ == "__main__":
    main()
