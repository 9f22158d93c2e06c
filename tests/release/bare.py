"""The wheel and the sdist in an environment that has nothing but what their metadata names."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.limits import HANG
from tests.release.build import run_tool
from tests.release.pages import example

# Printed by the Python of the bare environment: what the metadata names without any extra, and what is installed.
_REQUIRES = """
import json
from importlib.metadata import requires
print(json.dumps([line for line in requires("loadax") if "extra ==" not in line]))
"""
# Every file of loadax as it was installed, with its digest.
_FILES = """
import json
from importlib.metadata import files
print(json.dumps(sorted([str(file), file.hash.value] for file in files("loadax") if str(file).startswith("loadax/"))))
"""


@contextmanager
def environment(tools: Path, python: str) -> Iterator[Path]:
    """An environment without any package, until the end of the block.

    Args:
        tools: Folder with `uv`.
        python: Interpreter.

    Yields:
        Its Python.
    """
    with TemporaryDirectory() as folder:
        run_tool([tools / "uv", "venv", "-q", "--python", python, f"{folder}/bare"], Path(folder))
        yield Path(folder, "bare/bin/python")


def check(tools: Path, python: Path, wheel: Path, sdist: Path) -> None:
    """Installs the wheel, and then the sdist, and runs the README's example with each.

    The wheel comes without its dependencies; then exactly the requirements that its metadata names are installed.

    Raises:
        AssertionError: if something is missing, or the two install other files.
    """
    install: list[str | Path] = [tools / "uv", "pip", "install", "-q", "--python", python]
    folder = python.parents[2]
    run_tool([*install, "--no-deps", wheel.absolute()], folder)
    named: list[str] = json.loads(_output(python, _REQUIRES))
    print(f"the metadata names {', '.join(named)}")
    run_tool([*install, *named], folder)
    run_tool([tools / "uv", "pip", "check", "--python", python], folder)
    _output(python, example())
    of_wheel = _output(python, _FILES)
    run_tool([*install, "--no-deps", "--reinstall", sdist.absolute()], folder)
    _output(python, example())
    assert _output(python, _FILES) == of_wheel, "the sdist installs other files than the wheel"
    count = len(json.loads(of_wheel))
    print(f"{count} files of the wheel, and the same of the sdist; each ran the README's example")
    print(_output(python, "import sys; from loadax.cli import main; sys.argv[1:] = ['env']; main()"))


def _output(python: Path, program: str) -> str:
    """The output of a program in an empty folder, which sees nothing of the repository."""
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        settings.pop(name, None)
    with TemporaryDirectory() as folder:
        run = subprocess.run(
            [python, "-I", "-W", "error", "-c", program],
            cwd=folder,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG,
        )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
    return run.stdout
