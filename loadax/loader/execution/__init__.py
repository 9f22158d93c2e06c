"""Who works when: prefetch scheduling, batch producers, autotuning, threads."""
