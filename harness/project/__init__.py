"""The checkout: where it lies, what git knows of it, and the documents in it."""
