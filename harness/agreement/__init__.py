"""Agreement: every backend of an op judged on the same inputs, and what was found."""
