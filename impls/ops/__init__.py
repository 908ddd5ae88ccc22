"""One page per op: the file's name is the op's name (see `impls.contract.Op`)."""
