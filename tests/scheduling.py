"""How pytest-xdist shares the tests out.

File by file, in their order, so that what a module sets up once is set up once.
"""

from typing import final

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


@final
class ByFile(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Loads by file, and runs a test that ended its process no second time.

    `LoadFileScheduling` of pytest-xdist 3.8 gives such a test to the next process, which it ends too, and so on until
    no process may be started any more.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Takes a test process out.

        Returns the test that it was running, when it crashed; its other tests go to others.
        """
        files = self.assigned_work[node]
        crashed = next(((tests, test) for tests in files.values() for test, done in tests.items() if not done), None)
        if crashed is None:
            return super().remove_node(node)
        tests, test = crashed
        tests[test] = True
        for name in [name for name, tests in files.items() if all(tests.values())]:
            del files[name]  # a process that got a file without tests would wait for ever
        super().remove_node(node)
        return test
