"""One file per command of the command line; the file's name is the command's."""
