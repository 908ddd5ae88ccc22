"""pdist: the backward of no rows reads memory that is not its own, and ends the process.

Seen: at (0, 7) in float32 and float64; the forward returns an empty tensor. The
gradient is empty.
"""

import subprocess
import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()

CALL = """
import torch
x = torch.zeros(0, 7, requires_grad=True)
torch.pdist(x).sum().backward()
"""
code = subprocess.run([sys.executable, "-c", CALL], check=False).returncode
print(f"torch {torch.__version__}: exit code {code}, expected 0")
sys.exit(code != 0)
