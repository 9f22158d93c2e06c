"""Where numbers and data meet: plan, fetch, assemble, place, prefetch, iterate."""
