"""The peers, each as a careful user of it would write it.

A module is imported only in the process of a contestant that needs it.

A form is `prepare(workload, folder, sharding, **options) -> open`; `open()` gives an endless iterator over batches on
the devices, shuffled anew each epoch. Where a peer takes rows one by one and where it takes whole batches, it gets both
from the workload's `Data`.
"""
