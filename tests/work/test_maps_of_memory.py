"""Which files are mapped where, as the kernel lists them."""

import mmap
from pathlib import Path

from loadax.work import pickling


def test_files_whose_names_have_what_ends_lines_elsewhere(tmp_path: Path) -> None:
    """In the list of the kernel, a newline alone does, and it is escaped in names."""
    names = ["a\x0bb", "a\u2028b", "a\x1cb", "a\nb"]
    maps = []
    for name in names:
        (tmp_path / name).write_bytes(b"x" * mmap.PAGESIZE)
        with (tmp_path / name).open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    found = {inode for _, _, (_, _, inode) in pickling._spans()}
    assert found >= {(tmp_path / name).stat().st_ino for name in names}
    for mapped in maps:
        mapped.close()
