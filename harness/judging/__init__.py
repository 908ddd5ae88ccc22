"""Judging: cases, the reference, rounding radii, and the verdict on a gradient."""
