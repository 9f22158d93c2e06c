r"""`loadax plan`: show what a run will read and hold on every host, for any mesh.

Shows what a training run will read, decode and hold on each host of a mesh, without its devices; warns about
unnecessary costs; and checks that each row of the first steps is read by exactly the hosts that hold it.

examples:
  loadax plan corpus.bin --seq-len 2047 --dtype uint16 --mesh data=512,seq=8 --hosts 512 --partition data,seq \
    --batch-size 4096 --shuffle 0
      a row is cut in 8 along its columns, so that no host reads tokens of other hosts' devices
  loadax plan fields.zarr --mesh data=64 --hosts 8 --batch-size 512 --shuffle 0 --block chunks
  loadax plan train.zarr --mesh data=16,model=4 --hosts 8 --partition "image=data,-,model;label=data" \
    --batch-size 256 --json

A partition names the mesh axes that cut each dim of a leaf, rows first: a name, several joined by +, or - for none.
Pass one for all leaves, or LEAF=… for each of them, separated by semicolons.

{SOURCES}. Only its metadata is
read, and no accelerator is used.
"""

import argparse
import json
import re
from typing import Any

from loadax.cli.options import add_command, add_shuffle_options, add_value, shuffled
from loadax.cli.source import add_source_options, open_dataset
from loadax.cli.terminal import show
from loadax.errors import ArgumentError


def add(commands: Any) -> None:
    """Adds `plan` to the commands."""
    command = add_command(commands, run)
    add_source_options(command)
    add_value(command, "--mesh", "A=N,B=M", "axes of the mesh and their sizes", _axes, required=True)
    add_value(command, "--hosts", "N", "hosts with an equal number of devices each (default: 1)", default=1)
    add_value(command, "--partition", "P", "axes that cut each dim (default: rows over a one-axis mesh)", str)
    add_value(command, "--batch-size", "B", "rows of the global batch", required=True)
    add_shuffle_options(command)
    add_value(command, "--epochs", "N", "epochs; 0: endless (default: 1)", default=1)
    command.add_argument(
        "--remainder", choices=["drop", "pad", "error"], default="drop", help="what to do with a partial last batch"
    )
    prefetching = "bytes of each host's memory for prefetching (default: 256 MiB)"
    add_value(command, "--prefetch-bytes", "N", prefetching, default=256 << 20)
    add_value(command, "--cache-bytes", "N", "bytes of each host for open chunks (default: half of this one's)")
    add_value(command, "--steps", "N", "steps to sample (default: 8), and to check (default: one second of checks)")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When an option is invalid, or there is no data.
    """
    from loadax.loader.dataloader import Dataloader  # imports JAX, which other commands don't need
    from loadax.sharding import plan_mesh

    loader = Dataloader(
        shuffled(open_dataset(options), options),
        options.batch_size,
        mesh=plan_mesh(options.mesh, hosts=options.hosts),
        partition=None if options.partition is None else _partition(options.partition),
        num_epochs=options.epochs or None,
        remainder=options.remainder,
        prefetch_bytes=options.prefetch_bytes,
        cache_bytes=options.cache_bytes,
    )
    explanation = loader.explain() if options.steps is None else loader.explain(options.steps)
    check = loader.check_plan(options.steps)
    if options.json:
        show(json.dumps({**explanation.to_dict(), "check": check.to_dict()}, indent=2))
    else:
        show(str(explanation))
        show(f"\n{check}")
    return 0


def _partition(text: str) -> Any:
    """Parses the text of `--partition`, as `--help` describes it."""
    entries = [entry for entry in text.split(";") if entry]
    if "=" not in text:
        if len(entries) != 1:
            raise ArgumentError(f"--partition {text!r}: name the leaf of each part: 'image=data;label=data'")
        return _spec(entries[0])
    pairs = [entry.partition("=") for entry in entries]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise ArgumentError(
                f"--partition {text!r}: {name!r} lacks a leaf or its axes; pass LEAF=AXES for each leaf"
            )
    return {name.strip(): _spec(spec) for name, _, spec in pairs}


def _spec(text: str) -> Any:
    from jax.sharding import PartitionSpec

    dims = [dim.strip() for dim in text.split(",")]
    return PartitionSpec(*(None if dim in ("-", "") else tuple(dim.split("+")) if "+" in dim else dim for dim in dims))


def _axes(text: str) -> dict[str, int]:
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)=(\d+)\s*", part)
        if match is None or match[1] in axes:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a mesh; pass axes and their sizes, each once, such as data=512,seq=8"
            )
        axes[match[1]] = int(match[2])
    return axes
