"""Builds and checks a release: `python -m tests.release build --tools .venv-release/bin`.

build       builds the wheel and the sdist twice, compares their bytes, installs both into a bare environment, runs the
            README's example there, and lists its packages (SBOM) and their known vulnerabilities
sdist       runs a part of the tests in the unpacked sdist
lowest      runs the same tests with the lowest versions that pyproject.toml names
newest      the same with the newest versions, and the newest Python of this machine
blocked     the same where neither grain nor array-record can be imported

`.ci/run` makes the folder of tools from `.ci/release.txt`. What can't be done here, such as asking for vulnerabilities
without a network, is said in a line that begins with "NOT RUN".
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.release import audit, bare, build, versions

DIST = Path("dist")


def main(given: Sequence[str] | None = None) -> int:
    """Runs one of the checks. Returns 0 if it passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["build", "sdist", "lowest", "newest", "blocked"])
    parser.add_argument("--tools", type=Path, default=Path(".venv-release/bin"), help="folder of the pinned tools")
    parser.add_argument("--python", default=sys.executable, help="of the environments of build and lowest")
    parser.add_argument("--quick", action="store_true", help="run the whole quick subset of the tests")
    options = parser.parse_args(given)
    tools = options.tools.absolute()
    if options.what == "build":
        wheel, sdist = build.build_twice(tools, DIST)
        with bare.environment(tools, options.python) as python:
            bare.check(tools, python, wheel, sdist)
            audit.write_sbom(tools, python, wheel)
            audit.find_vulnerabilities(tools, python)
        return 0
    if options.what == "sdist":
        return versions.run_in_sdist(DIST, quick=options.quick)
    if options.what == "blocked":
        return versions.run_blocked(quick=options.quick)
    if options.what == "lowest":
        return versions.run_with(tools, "lowest-direct", options.python, quick=options.quick)
    return versions.run_with(tools, "highest", versions.newest_python(), quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
