"""One file per backend, named framework_flavour; the only door for frameworks."""
