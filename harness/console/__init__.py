"""Console: tables and progress on the terminal, and options that commands share.

- streams: standard streams, and the line that shows the progress
- terminal: tables, and the last lines of a command
- options: click options and their checks, which suggest the nearest name
"""
