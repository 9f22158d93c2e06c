"""Trains with real trainers, reads datasets of torch, and runs tasks on Ray, each in a virtual environment of its own.

Together they need 5 GB of packages.

python -m tests.interop.trainers                  # all; installs with uv, which must be there
python -m tests.interop.trainers tunix --at /tmp/trainers
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BESIDE = ["-e", str(ROOT)]
TRAINERS = {
    "tunix": ["google-tunix==0.1.7"],
    "kauldron": ["kauldron==1.4.2"],
    # The last two are imports that it does not declare.
    "levanter": ["levanter==1.2.dev1644", "haliax==1.4.dev453", "gitpython", "chex"],
    "torch": ["torch==2.13.0"],
    "ray": ["ray==2.60.0"],
}


def run(name: str, folder: Path) -> bool:
    """Installs a trainer, unless that is done, and trains with it; whether that went well."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        subprocess.run(["uv", "venv", "--python", sys.executable, folder / name], check=True)
        subprocess.run(["uv", "pip", "install", "--python", python, *TRAINERS[name], *BESIDE], check=True)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    # By its path: another package that is installed with a trainer is called `tests` too.
    script = Path(__file__).with_name(f"{name}_run.py")
    return subprocess.run([python, script], env=environment, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*TRAINERS, []], metavar="TRAINER", help=", ".join(TRAINERS))
    parser.add_argument("--at", type=Path, default=Path(".trainers"), help="folder of the environments")
    options = parser.parse_args()
    failed = [name for name in options.names or TRAINERS if not run(name, options.at.absolute())]
    if failed:
        print("failed:", *failed)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
