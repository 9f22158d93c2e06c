"""Streams in a run: it reads their lanes in order, saves their states, and agrees on the end."""
