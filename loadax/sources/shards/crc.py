"""CRC32C, masked as in TFRecord files."""

from typing import Any

from loadax.errors import UnsupportedError


def require_crc32c() -> Any:
    """Imports the library that computes CRC32C.

    Raises:
        UnsupportedError: When it can't be imported; says what to install.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise UnsupportedError(
            f"TFRecord files are checked by google-crc32c, which can't be imported ({error}): pip install google-crc32c"
        ) from error
    return google_crc32c


def masked_crc32c(content: bytes) -> int:
    """CRC32C of some bytes, rotated right by 15 bits, plus a constant modulo 2**32.

    Source: TensorFlow, "TFRecord and tf.train.Example", the section on the format of TFRecord files.
    """
    crc: int = require_crc32c().value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
