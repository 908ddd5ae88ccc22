"""A page computes on the device of its inputs, whatever that is.

PyTorch's fake tensors know their device and have no numbers, so none has to be there:
an operation between a tensor of it and one of the CPU is an error, as on a GPU. A
device without kernels is declared in a process of its own (it cannot be undone).
"""

import json
import subprocess
import sys

import pytest

from gradwatch.harness.project.paths import ROOT
from gradwatch.impls.catalogue import op_names
from tests.frameworks import usable

pytestmark = pytest.mark.slow

CODE = """
import json, sys
from dataclasses import replace
import torch
from torch._subclasses import fake_tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.impls.backends._torchlike import TorchLike
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Unsupported

_setup_privateuseone_for_python_backend("gpu")
fake_tensor.CONSTANT_NUMEL_LIMIT = -1  # or it would compute with single numbers
# There are no kernels: what copies a number to the device fails here, and not there.
NO_KERNEL = ("aten::empty_strided", "aten._local_scalar_dense")

def wrong(step):
    step.forward(), step.backward()
    made = [*step.outputs.values(), *step.gradients]
    return [str(t.device) for t in made if t is not None and t.device.type != "gpu"]

def run(name, case, dialect):
    problem = trial(load_op(name), case, REGIMES["normal"], "float32").problem
    try:
        with fake_tensor.FakeTensorMode():
            problem = replace(problem, device="gpu")
            return wrong(TorchLike(torch, dialect).prepare(problem))
    except Unsupported:
        return []
    except Exception as error:
        if any(missing in str(error) for missing in NO_KERNEL):
            return None
        return str(error).splitlines()[0]

found = {}
for name in sys.argv[1:]:
    case = next(iter(load_op(name).cases.values()))
    for dialect in ("formula", "autograd", "custom"):
        found[f"{name} {dialect}"] = run(name, case, dialect)
json.dump(found, sys.stdout)
"""

#: A formula that puts numbers of the CPU beside its input: the planted mistake.
PLANTED = """
import torch
from gradwatch.impls.contract import Case, Op
op = Op("planted", inputs="x", cases=[Case("3", x=(3,))])

@op.implement("formula")
def formula(xp, x):
    return x * torch.ones(3)

@op.implement("autograd")
def autograd(F, x):
    return F.scatter_add(x, 0, F.tensor([0, 1, 2]), x)

@op.implement("custom")
class Planted:
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, dy):
        return dy + torch.zeros(3)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Why a page fails there, by page and dialect; None if it cannot be tried."""
    usable("torch")
    planted = tmp_path_factory.mktemp("page") / "planted.py"
    planted.write_text(PLANTED)
    done = subprocess.run(
        [sys.executable, "-c", CODE, *op_names(), str(planted)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_page_stays_on_the_device_of_its_inputs(found):
    wrong = {name: why for name, why in found.items() if why}
    assert [name for name in wrong if "planted" not in name] == []


def test_most_pages_can_be_tried_without_kernels(found):
    """An op that copies a number to the device cannot, and is not counted as right."""
    untried = [name for name, why in found.items() if why is None]
    assert len(untried) < len(found) / 10


def test_a_tensor_of_the_cpu_beside_one_of_the_device_is_found(found):
    planted = {name: why for name, why in found.items() if "planted" in name}
    assert len(planted) == 3
    assert all("device" in why for why in planted.values()), planted
