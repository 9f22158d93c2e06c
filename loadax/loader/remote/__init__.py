"""Reading on other machines: pieces are filled by the workers of an executor, or here when these don't deliver."""
