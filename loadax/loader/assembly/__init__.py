"""What this host holds of a batch, and how rows get there."""
