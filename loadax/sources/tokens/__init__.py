"""Token files, windows of them, and documents."""
