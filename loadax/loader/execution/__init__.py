"""Execution: prefetch scheduling, batch producers, autotuning, thread and process executors."""
