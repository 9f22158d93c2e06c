"""The worker processes of this process."""

import psutil


def worker_processes() -> list[psutil.Process]:
    """Children that read for a loader and have not ended."""
    found = []
    for child in psutil.Process().children():
        try:
            if "loadax.loader.workers.main" in child.cmdline():
                found.append(child)
        except psutil.Error:
            pass  # gone in this moment, or a zombie
    return found
