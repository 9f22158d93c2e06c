"""CRC32C, masked as in TFRecord files."""


def masked_crc32c(content: bytes) -> int:
    """CRC32C of some bytes, rotated right by 15 bits, plus a constant modulo 2**32.

    Source: TensorFlow, "TFRecord and tf.train.Example", the section on the format of TFRecord files.
    """
    import google_crc32c

    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
