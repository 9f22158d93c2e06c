"""Rows in, arrays out. One file a backend, and nobody else imports that backend."""
