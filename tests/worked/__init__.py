"""The worked examples: every figure of the study notes that the project grew out of.

One file a section. A figure is a string as it is printed there, and what a backend
computes must print the same.
"""
