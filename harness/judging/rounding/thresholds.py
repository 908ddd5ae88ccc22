"""The numbers that decide a verdict, each with its derivation; see docs/judging.md.

All others follow from these, from the formats and the graph, or are sizes of samples.
"""

#: Rounding radii that are allowed, whatever is added up: more than every ratio of a
#: correct kernel in the calibration, less the rest (at most 15.9 with OneFlow's kernels
#: and 5.5 without, docs/selftest.md).
ALWAYS = 16.0
#: And for the root of the number of terms: the additions of a sequential sum go on as a
#: random walk (Higham and Mary 2019); half covers those of the calibration.
EACH_ROOT = 0.5
#: What is allowed over the value, above which an element says nothing: a tenth leaves
#: no digit.
SAYS_NOTHING = 0.1
#: Share of the elements that say nothing, from which a tensor is vacuous; and the error
#: of a tensor as a whole that has to be seen.
MOST = 0.5
#: Roundoffs that one operation may be off by: a unit in the last place, as libraries
#: promise of exp or log (SLEEF's u10, the tables of the CUDA programming guide).
UNIT = 2.0
#: What is small beside something, so that it may be left out: of a sum of squares a
#: quarter is 6 %, far below what eight draws can tell (a factor of 2).
SMALL = 0.25
#: By how much a few draws may show too little: of three pairs, less than a third of the
#: true rms is found in 1 of 100 cases (chi-squared).
FEW_DRAWS = 3.0
#: What Student's t with 24 degrees of freedom exceeds once in 10^9 times: a tensor has
#: some hundred slices, a network a hundred tensors.
AS_A_WHOLE = 9.64
