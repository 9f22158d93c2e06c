"""Workloads by name. Their data are written once per run and read by path, and every row contains its number."""

from workloads import arrays, jpegs, records, rows, stores, transform
from workloads.base import Workload

FULL: dict[str, Workload] = {
    each.name: each for each in (*arrays.FULL, *rows.FULL, *transform.FULL, *jpegs.FULL, *records.FULL, *stores.FULL)
}
QUICK: dict[str, Workload] = {
    each.name: each
    for each in (*arrays.QUICK, *rows.QUICK, *transform.QUICK, *jpegs.QUICK, *records.QUICK, *stores.QUICK)
}


def find(name: str, quick: bool) -> Workload:
    """The workload of that name, large or small."""
    return (QUICK if quick else FULL)[name]
