"""Comparing with a printed figure: to the digits that are printed, no tolerance."""

import numpy as np


def printed(values, like):
    """The values with as many decimals as the figures in `like`, one for each."""
    figures = like.split()
    flat = np.ravel(values) + 0.0  # a zero has no sign on paper
    return " ".join(
        f"{value:.{len(figure.partition('.')[2])}f}"
        for value, figure in zip(flat, figures, strict=True)
    )
