"""A module of HIPS/autograd without its siblings."""

import json
import subprocess
import sys

import pytest

from gradwatch.harness.project.paths import SOURCE

pytest.importorskip("autograd")

NAMES = ("expit", "erf", "logsumexp")

LOADED = """
import json, sys
import numpy as np
import gradwatch.impls.backends.autograd_formula
from autograd import elementwise_grad
from gradwatch.impls.backends._hips_special import special
unasked = "scipy.special" in sys.modules
mine = {name: special(name) for name in sys.argv[1:]}
alone = sorted(name for name in sys.modules if name.startswith("autograd.scipy"))
heavy = [name for name in ("scipy.stats", "scipy.signal") if name in sys.modules]
import autograd.scipy.special as whole
x = np.linspace(-3.0, 3.0, 13)
same = [
    bool((elementwise_grad(f)(x) == elementwise_grad(getattr(whole, name))(x)).all())
    for name, f in mine.items()
]
print(json.dumps([unasked, alone, heavy, same]))
"""


def test_the_special_functions_are_autograds_own_and_nothing_else_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *NAMES],
        cwd=SOURCE,
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == [False, [], [], [True] * len(NAMES)]


@pytest.mark.parametrize(
    ("package", "name"), [("autograd.scipy", "spezial"), ("autogrid", "special")]
)
def test_a_module_that_is_not_there_is_an_import_error(package, name):
    """As of any import: the backend is missing then."""
    from gradwatch.impls.backends._hips_special import alone

    with pytest.raises(ImportError, match=f"{package} has no module {name}"):
        alone(package, name)
