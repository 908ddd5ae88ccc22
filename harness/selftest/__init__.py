"""The self-test: known-wrong backwards are planted, and the judges put on trial."""
