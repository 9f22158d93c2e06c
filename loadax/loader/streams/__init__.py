"""What a run does with streams: it reads their lanes in order, saves their states, and agrees on the end."""
