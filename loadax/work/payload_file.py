"""File of a payload, in a folder that all workers of an executor share.

Its message is a pickle, which runs whatever code it says, and may have passwords in it. So a task has the digest of
the message, which is compared before it is opened, and its key, since it is written encrypted: the stream that it is
combined with is SHAKE-256 of a key that is used once. Large arrays come before it, in clear: they are mapped. The file
is its owner's alone, exists while tasks may need it, and is swept if the process was killed.
"""

import hashlib
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadax.errors import ArgumentError, SourceError
from loadax.files.kept_files import kept_folder, open_kept, temporary_file
from loadax.work.payload import Payload

PAYLOAD_PREFIX = "recipe-"  # beginning of the names of such files
_KEY = 32  # bytes


class PayloadFile(NamedTuple):
    """Address of the file of a payload, as a task has it.

    Args:
        path: Path of the file.
        first: First byte of the encrypted message.
        size: Its bytes.
        digest: Its SHA-256.
        key: Its key, in hexadecimal digits.
    """

    path: str
    first: int
    size: int
    digest: str
    key: str


@contextmanager
def written_payload(
    folder: Path, pack: Callable[[int], Payload]
) -> Iterator[PayloadFile]:
    """A block in which a folder has the file of a payload.

    Args:
        folder: The folder.
        pack: Makes the payload in the empty file with this descriptor.

    Raises:
        SourceError: When it can't be written.
        Exception: Whatever `pack` raises.
    """
    with ExitStack() as stack:
        try:
            with ExitStack() as begun:
                beneath = begun.enter_context(kept_folder(folder))
                file, name = begun.enter_context(
                    temporary_file(Path(), 0o600, PAYLOAD_PREFIX, beneath)
                )
                payload = pack(file.fileno())
                key = secrets.token_hex(_KEY)
                message = _combined(
                    pickle.dumps((payload.message, payload.arrays)), key
                )
                first = file.seek(0, os.SEEK_END)
                file.write(message)
                file.flush()
                # network file systems send what is written when it is closed
                os.close(os.dup(file.fileno()))
                stack.push(begun.pop_all())
        except OSError as error:
            raise SourceError(
                f"the payload in {folder} can't be written: {error}; free space, and "
                "call again"
            ) from error
        yield PayloadFile(
            str((folder / name).absolute()),
            first,
            len(message),
            hashlib.sha256(message).hexdigest(),
            key,
        )


def read_payload(path: str, first: int, size: int, digest: str, key: str) -> Payload:
    """Reads the entries of a `PayloadFile` in a worker. The descriptor is the caller's to close.

    Raises:
        ArgumentError: When the file can't be read.
        SourceError: When it was changed after it was written.
    """
    place = Path(path)
    try:
        with kept_folder(place.parent) as folder:
            descriptor = open_kept(place.name, folder=folder)
        message = os.pread(descriptor, size, first)
    except OSError as error:
        raise ArgumentError(
            f"a worker of the executor on {socket.gethostname()} can't read "
            f"{path} ({error.strerror}); pass a folder that this process and "
            "all workers share, by the same path",
            argument="index",
        ) from error
    if hashlib.sha256(message).hexdigest() != digest:
        os.close(descriptor)
        raise SourceError(
            f"{path} was changed after it was written, and nothing of "
            "it is used; pass a folder that only you can write to"
        )
    packed, arrays = pickle.loads(_combined(message, key))  # noqa: S301 - the digest is right
    return Payload(packed, descriptor, arrays)


def _combined(message: bytes, key: str) -> bytes:
    """A message, encrypted or decrypted by a key that is used for it alone."""
    stream = np.frombuffer(
        hashlib.shake_256(bytes.fromhex(key)).digest(len(message)), np.uint8
    )
    return (np.frombuffer(message, np.uint8) ^ stream).tobytes()
