"""The numbers that decide a verdict, each with its derivation; see docs/judging.md.

All others follow from these, from the formats and the graph, or are sizes of samples.
"""

#: Rounding radii that are allowed, whatever is added up: more than every ratio of a
#: correct kernel in the calibration, less the rest (at most 15.9 with OneFlow's kernels
#: and 5.5 without, docs/selftest.md).
ALWAYS = 16.0
#: More radii for each root of the number of terms: errors of a sequential sum are a
#: random walk (Higham and Mary 2019); half a radius covers those of the calibration.
EACH_ROOT = 0.5
#: Ratio of tolerance to value above which an element says nothing: a tenth leaves no
#: digit.
SAYS_NOTHING = 0.1
#: Share of elements that say nothing from which a tensor is vacuous; and the relative
#: error of a tensor as a whole that has to be seen.
MOST = 0.5
#: Largest error of one operation in unit roundoffs: a unit in the last place, as
#: libraries promise for exp or log (SLEEF's u10, the CUDA programming guide's tables).
UNIT = 2.0
#: Ratio below which a part is negligible: the square of a quarter adds 6 % to a sum of
#: squares, far less than eight draws can resolve (a factor of 2).
SMALL = 0.25
#: Factor by which a few draws may show too little: with three pairs, the rms is less
#: than a third of the true one in 1 of 100 cases (chi-squared).
FEW_DRAWS = 3.0
#: The value that Student's t exceeds once in 10^9 times, by its degrees of freedom: a
#: tensor has some hundred slices, a network a hundred tensors.
AS_A_WHOLE = {24: 9.64, 96: 6.77}
