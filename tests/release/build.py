"""The wheel and the sdist, built twice from the same files, byte for byte alike."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.limits import HANG
from tests.release.pages import ROOT

EARLY = 946_684_800
"""A time of files of one copy, in seconds: that of the other copy is now."""


def build_twice(tools: Path, dist: Path) -> tuple[Path, Path]:
    """Builds from two copies of the repository, and keeps one wheel and one sdist.

    The copies have other names, times and permissions, as two clones have.

    Args:
        tools: Folder with the `python` and the `twine` of the pinned tools.
        dist: Folder for the two files; what is in it is removed.

    Returns:
        Paths of the wheel and of the sdist.

    Raises:
        AssertionError: if two builds differ.
    """
    digests: list[dict[str, str]] = []
    with TemporaryDirectory() as folder:
        copy_tracked(Path(folder, "files"))
        copy = Path(folder)
        for name, mode, time in (("one", 0o644, EARLY), ("another clone", 0o600, None)):
            copy = Path(folder, name)
            copy_files(Path(folder, "files"), copy, mode, time)
            run_tool([tools / "python", "-m", "build", "--no-isolation"], copy)
            digests.append({path.name: _digest(path) for path in sorted((copy / "dist").iterdir())})
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(copy / "dist", dist)
    for name, digest in digests[0].items():
        print(f"{digest}  {name}")
    assert digests[0] == digests[1], f"two builds of the same files differ: {digests}"
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    run_tool([tools / "twine", "check", "--strict", wheel.absolute(), sdist.absolute()], dist)
    return wheel, sdist


def copy_tracked(target: Path) -> None:
    """Copies the files of the repository that a clone would have, as they are now, into a new folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=HANG).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # or it is deleted, but not yet from the index
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def copy_files(source: Path, target: Path, mode: int, time: int | None) -> None:
    """Copies a folder.

    Args:
        source: The folder.
        target: Folder to make.
        mode: Permissions of the files.
        time: Time of their last change, in seconds; None: now.
    """
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            if time is not None:
                os.utime(path, (time, time))


def run_tool(command: list[str | Path], folder: Path) -> None:
    """Runs a tool with the time of the last commit; shows what it says only if it fails.

    Raises:
        AssertionError: if it fails.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _commit_time()}
    run = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=5 * HANG,
    )
    assert run.returncode == 0, f"{command} has failed:\n{run.stdout}"


def _commit_time() -> str:
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG).stdout.strip()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
