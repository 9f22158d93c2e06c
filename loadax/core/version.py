"""The version of loadax, which rooms compare that other processes or later runs have."""

__version__ = "0.1.0"
