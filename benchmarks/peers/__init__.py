"""The peers, each as a careful user would write it.

A module is imported only in the process of a contestant that needs it. A form is
`prepare(workload, folder, sharding, **options) -> open`; `open()` returns an endless iterator over batches on the
devices, in a new order each epoch. Peers get single rows, and whole batches, from the workload's `Data`.
"""
