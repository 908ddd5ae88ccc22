"""The terminal: tables, progress, and the options that commands share."""
