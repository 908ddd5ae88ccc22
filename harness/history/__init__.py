"""History: what is measured of a commit, how it is recorded, and where it changed."""
