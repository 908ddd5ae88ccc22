"""One file per backend, named framework_flavour; only these import a framework."""
