"""Random chains for as long as wanted: `python -m tests.laws.fuzz --chains 2000`.

Prints what was tried, and how to try a finding again.
"""

import argparse
import os

# Before anything imports JAX, as in tests/conftest.py.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import faulthandler
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.laws.chain_checks import check
from tests.laws.chain_choices import Tally
from tests.laws.chain_rows import Stores
from tests.limits import HANG


def main(given: Sequence[str] | None = None, hang: float | None = HANG) -> int:
    """Tries chains, and prints those that broke a law.

    Args:
        given: arguments of the command line.
        hang: seconds that one chain may take; None: nothing ends what hangs.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.laws.fuzz", description=__doc__)
    parser.add_argument("--chains", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--first", type=int, default=0, help="number of the first chain")
    parser.add_argument("--processes", type=float, default=0.02, help="share of chains that worker processes load")
    parser.add_argument(
        "--contract", type=float, default=0.3, help="share of chains whose sources go through check_source"
    )
    arguments = parser.parse_args(given)
    tally, start = Tally(), time.monotonic()
    findings: list[int] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r"split\(")  # chains of few rows have empty parts
        stores = Stores(Path(folder))
        for tried, number in enumerate(range(arguments.first, arguments.first + arguments.chains), 1):
            if hang is not None:
                faulthandler.dump_traceback_later(hang, exit=True)
            try:
                check(Random(f"{arguments.seed} {number}"), stores, tally, arguments.contract, arguments.processes)
            except Exception:  # noqa: BLE001 - a finding, whatever it is
                findings.append(number)
                print(traceback.format_exc())
                print(f"again: python -m tests.laws.fuzz --seed {arguments.seed} --first {number} --chains 1")
            if tried % 100 == 0:
                print(f"{tried} chains, {time.monotonic() - start:.0f} s, {len(findings)} findings", flush=True)
        if hang is not None:
            faulthandler.cancel_dump_traceback_later()
    print(tally)
    print(
        f"{arguments.chains} chains, {time.monotonic() - start:.0f} s, seed {arguments.seed}, findings: "
        f"{findings or 'none'}"
    )
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
