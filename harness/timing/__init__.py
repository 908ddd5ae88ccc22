"""Timing: samples taken in turn, intervals, and the comparison of two sides."""
