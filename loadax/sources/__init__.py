"""Sources: rows in, arrays out. One module or folder for each backend, which nothing else imports."""
