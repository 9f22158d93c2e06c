"""A part of the tests with other versions of Python, JAX and all the rest, and without some packages."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.release.build import run_tool
from tests.release.pages import ROOT

QUICK = ("-m", "not (scripts or processes or servers)", "--hypothesis-profile=dev")

CORE = (
    "tests/core/test_spec.py",
    "tests/core/test_tree.py",
    "tests/loader/test_dataloader.py",
    "tests/plan/test_order.py",
    "tests/plan/test_pack.py",
    "tests/plan/test_sample.py",
    "tests/plan/test_shuffle.py",
    "tests/plan/test_split.py",
    "tests/plan/test_subset.py",
    "tests/sharding/test_dtypes.py",
    "tests/sharding/test_layout.py",
    "tests/sharding/test_mesh.py",
    "tests/sharding/test_partition.py",
    "tests/sharding/test_placer.py",
    "tests/test_dataset.py",
    "tests/test_reader.py",
)
"""Of the quick subset: orders, meshes, datasets and the loader."""

FEW = ("tests/core/test_spec.py", "tests/core/test_tree.py", "tests/plan/test_order.py", "tests/plan/test_shuffle.py")
"""Of these, those that take a moment: whether the sdist has what its tests need."""

LIBRARIES = ("tests/formats", "tests/kept")
"""Of the quick subset: every format, and files of earlier versions. They need all libraries."""

LIMIT = 900.0
"""Seconds that the tests may take."""

_PACKAGES = "jax", "jaxlib", "numpy", "grain", "array-record", "obstore", "tensorstore", "pyarrow", "flax"
_SHOW = f"""
import platform
from importlib.metadata import version
print("Python", platform.python_version(), *(f"{{name}} {{version(name)}}" for name in {_PACKAGES}), sep=", ")
"""
# Modules that can't be imported, neither in the tests nor in the processes that they start.
_BLOCK = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grain", "array_record"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
"""


def newest_python() -> str:
    """The newest Python that loadax is for, of those on the path and of pyenv; this one if there is no newer."""
    for minor in (13, 12):
        name = f"python3.{minor}"
        found = [*sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))]
        on_path = shutil.which(name)
        # pyenv has a program of that name on the path, which refuses to run
        if on_path and ".pyenv/shims" not in on_path:
            found.append(Path(on_path))
        if found:
            return str(found[-1])
    return sys.executable


def run_with(tools: Path, resolution: str, python: str, *, quick: bool = False) -> int:
    """Runs the tests in an environment with the lowest or the newest versions.

    Args:
        tools: Folder with `uv`.
        resolution: Versions that `uv` chooses: "lowest-direct", or "highest".
        python: Interpreter.
        quick: Whether to run the whole quick subset.

    Returns:
        Exit code of pytest.
    """
    uv = tools / "uv"
    with TemporaryDirectory() as folder:
        lock = Path(folder, "versions.txt")
        made = Path(folder, "venv")
        run_tool([uv, "venv", "-q", "--python", python, made], ROOT)
        interpreter = made / "bin/python"
        options: list[str | Path] = ["--extra", "test", "--resolution", resolution, "--python", interpreter, "-o", lock]
        try:
            run_tool([uv, "pip", "compile", "-q", ROOT / "pyproject.toml", *options], ROOT)
            run_tool([uv, "pip", "sync", "-q", "--python", interpreter, lock], ROOT)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            if "No solution found" in str(error):
                raise
            # the index does not answer
            print(f"NOT RUN: tests with the {resolution} versions, which could not be installed: {error}"[:2000])
            return 0
        subprocess.run([interpreter, "-c", _SHOW], check=True, timeout=LIMIT)
        return run_tests(str(interpreter), ROOT, CORE + LIBRARIES, quick=quick)


def run_in_sdist(dist: Path, *, quick: bool = False) -> int:
    """Runs the tests in the unpacked sdist, with its own loadax."""
    (sdist,) = dist.glob("*.tar.gz")
    with TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (root,) = Path(folder).iterdir()
        return run_tests(sys.executable, root, FEW, quick=quick)


def run_blocked(*, quick: bool = False) -> int:
    """Runs the tests where neither grain nor array-record can be imported."""
    with TemporaryDirectory() as folder:
        block(Path(folder))
        return run_tests(sys.executable, ROOT, CORE, folder, quick=quick)


def block(folder: Path) -> None:
    """Writes a `sitecustomize.py`: with that folder on PYTHONPATH, two packages can't be imported."""
    (folder / "sitecustomize.py").write_text(_BLOCK)


def run_tests(python: str, root: Path, chosen: tuple[str, ...], *paths: str, quick: bool = False) -> int:
    """Runs a part of the tests below `root`, in two processes.

    Args:
        python: Interpreter.
        root: Folder with `loadax` and `tests`, which must be what is imported.
        chosen: Files and folders of tests.
        paths: More folders to import from.
        quick: Whether to run the whole quick subset instead.

    Returns:
        Exit code of pytest.
    """
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(root)])}
    program = f"import loadax; assert loadax.__path__ == [{str(root / 'loadax')!r}], loadax.__path__"
    subprocess.run([python, "-c", program], cwd=root, env=settings, check=True, timeout=LIMIT)
    if quick:
        chosen = ()
    command = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *QUICK, *chosen]
    return subprocess.run(command, cwd=root, env=settings, check=False, timeout=LIMIT).returncode
