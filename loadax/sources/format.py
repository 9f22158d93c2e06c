"""The record of a format of files: its names and first bytes, what opens it, and its options on the command line."""

import re
from collections.abc import Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

from loadax.protocols import Engine
from loadax.sources.neighbours import is_companion


class RecordOptions(NamedTuple):
    """How files of records without an index of their own are opened.

    Args:
        index: Path of the index folder; None: no index.
        cache: Local folder for the cache of remote blocks; None: no cache.
        cache_bytes: Maximum size of the cache in bytes.
        progress: Whether to show progress bars; None: if stderr is a terminal.
        executor: What scans files instead of threads; None: threads.
    """

    index: Any = None
    cache: Any = None
    cache_bytes: int = 16 << 30
    progress: bool | None = None
    executor: Engine | None = None


class Format(NamedTuple):
    """A format of files. Each format's folder has one record, which `loadax.sources.formats` lists.

    Args:
        function: Name of the function of loadax that opens such files.
        noun: Noun for one file, as in "pass the path of …".
        names: Regular expression that is found in names of such files.
        magic: Regular expression that the first bytes of such files match.
        opener: `module:function` that `function` calls; empty if another library opens the files.
        line: Code that opens a file, where `{0}` is the path; empty: a call of the function with it.
        lacks: What a folder without such files lacks; empty if files are not looked for in folders.
        argument: Name of the argument that takes the paths.
        requires: A module of each package that reads such files, by the name that pip knows.
        extra: Extra of loadax with these packages; empty if they are installed with it.
        local_only: Reason why URLs are refused, with a remedy; None: URLs are accepted.
        accepted: Functions for formats that this one opens too, or refuses by itself.
        any_bytes: Whether almost any bytes are data, so that files of other formats are recognised first.
        lists: Whether such a file may also describe the other files of its folder, as labels of images.
        is_folder: Whether a whole folder is the data, not the files in it one by one.
        metadata: Whether what opening asks of remote storage is kept: whether the opener takes `metadata=`.
        options: Options of the command line that apply.
        columns: Name of the argument that `--columns` sets.
        needs: Option of the command line without which the files can't be opened; empty if there is none.
        command: `module:function` of a path and the arguments that options of the command line set; returns the
            arguments to open it with. Empty: these.
    """

    function: str
    noun: str
    names: str = "(?!)"
    magic: bytes = b"(?!)"
    opener: str = ""
    line: str = ""
    lacks: str = ""
    argument: str = "paths"
    requires: Mapping[str, str] = MappingProxyType({})
    extra: str = ""
    local_only: str | None = None
    accepted: tuple[str, ...] = ()
    any_bytes: bool = False
    lists: bool = False
    is_folder: bool = False
    metadata: bool = True
    options: tuple[str, ...] = ()
    columns: str = "columns"
    needs: str = ""
    command: str = ""

    def belongs(self, name: str) -> bool:
        """Whether a name is that of a file of this format; of companions only where `.idx` is its own ending."""
        found = re.search(self.names, name)
        return found is not None and (found[0] == ".idx" or not is_companion(name))

    def open(self, paths: Any, *arguments: Any, **named: Any) -> Any:
        """The source of files, by the function that `opener` names."""
        return resolve_name(self.opener)(paths, *arguments, **named)

    def command_arguments(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments with which the command line opens a path, from those that its options set."""
        arguments: dict[str, Any]
        if self.command:
            arguments = resolve_name(self.command)(path, given)
        else:
            arguments = given
        return arguments

    def call(self, path: str) -> str:
        """The code that opens a file."""
        line = self.line or f"loadax.{self.function}({{0}})"
        return line.replace("{0}", repr(path))
