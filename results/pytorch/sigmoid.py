"""sigmoid of complex numbers: nan where exp(-z) overflows, though the result is 0.

Seen: on a CPU, in complex64 and complex128; of real numbers it is 0
(https://github.com/pytorch/pytorch/issues/135777). The gradient is nan, too.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()

z = torch.full((16,), -1000 + 1j, dtype=torch.complex128)
got, expected = torch.sigmoid(z)[0], torch.exp(z)[0]
print(f"torch {torch.__version__}: got {got}, expected {expected}")
sys.exit(not torch.equal(got, expected))
