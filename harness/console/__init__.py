"""Console: tables and progress on the terminal, and options that commands share.

- terminal: output streams, progress bar
- options: click options and their checks, which suggest the nearest name
"""
