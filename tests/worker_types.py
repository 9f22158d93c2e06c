"""What reads for a loader, as the parameter of a test."""

import pytest

WORKER_TYPES = ["thread", pytest.param("process", marks=pytest.mark.processes)]
