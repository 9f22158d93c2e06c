"""The logger of all of loadax."""

import logging

log = logging.getLogger("loadax")
