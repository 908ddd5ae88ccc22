"""The map of ATen, by entries of OpInfo: right gradients pass, planted errors do not.

A few entries of each part of the table; scripts/studies/opinfo.py tries all of them.
"""

import json

import flint
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwatch.harness.project.verdicts import PASSING  # noqa: E402  # after importorskip
from gradwatch.harness.tracing.traced import (  # noqa: E402  # likewise
    ON_FLOATS,
    ON_VALUES,
    trace,  # likewise
)
from scripts.studies.opinfo import (  # noqa: E402  # likewise
    FINDINGS,
    caught,
    entries,
    listed_findings,
    one_entry,
    sweep,
)
from tests.balls import digits, precise  # noqa: E402  # likewise
from tests.tracing.slopes import gradients  # noqa: E402  # likewise

ENTRIES = [
    *("clamp", "copysign", "nn_functional_gelu", "where", "xlogy", "remainder"),
    *("amax", "cumprod", "logsumexp", "norm", "prod", "sort", "var_mean"),
    *("cat", "diagonal_scatter", "masked_scatter", "nn_functional_pad_reflect"),
    *("permute_copy", "unbind_copy", "nextafter"),
    *("index_put", "index_add", "put", "scatter_add", "scatter_reduce_prod"),
    *("addbmm", "nn_functional_conv_transpose2d", "nn_functional_bilinear"),
    *("nn_functional_avg_pool2d", "nn_functional_max_pool2d"),
    *("nn_functional_adaptive_max_pool2d", "nn_functional_adaptive_avg_pool3d"),
    *("_segment_reduce_lengths", "nn_functional_embedding_bag", "i0", "erfinv"),
    *(
        "linalg_inv",
        "linalg_slogdet",
        "matrix_exp",
        "nn_functional_pdist",
        "nn_functional_nll_loss",
    ),
]
#: Of these the first two samples have no gradient that says something.
TELLING = {"_segment_reduce_lengths": 3, "nn_functional_pdist": 3}


@pytest.fixture(scope="module")
def known():
    return {entry.formatted_name: entry for entry in entries(torch.float64)}


@pytest.mark.filterwarnings("ignore")  # of samples that are deprecated
@pytest.mark.parametrize("name", ENTRIES)
def test_the_gradients_of_an_entry_pass_and_planted_errors_do_not(name, known):
    record = one_entry(known[name], "float64", samples=TELLING.get(name, 2))
    assert record["not"] == []
    found = [j for sample in record["samples"] for j in sample["judged"]]
    assert [j["message"] for j in found if j["verdict"] not in PASSING] == []
    planted = caught([record])
    assert planted["scaled"][1] > 0
    assert all(hit == tried for hit, tried in planted.values()), planted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["nn_functional_hardsigmoid", "expm1", "digamma"])
def test_a_known_defect_is_found_and_gradcheck_passes_it(name, known):
    record = one_entry(known[name], "float64")
    verdicts = {j["verdict"] for sample in record["samples"] for j in sample["judged"]}
    assert "disagree" in verdicts
    assert record["gradcheck"] == "passes"


def test_every_finding_lists_the_entries_that_it_explains(known):
    assert {*listed_findings()} <= {*known}
    scripts = {script.stem for script in FINDINGS.glob("*.py")}
    # No sample of OpInfo shows these.
    beyond_the_samples = {
        *("conv3d", "det", "embedding_bag", "flash_attention", "householder_product"),
        *("instance_norm", "log_ndtr", "logsumexp", "pdist", "polar", "rms_norm"),
        *("bilinear", "gelu", "lstsq", "sigmoid"),
    }
    assert {*listed_findings().values()} == scripts - beyond_the_samples


@pytest.mark.parametrize("x", [-1000.0, -20.0, -8.5, 0.5, 1.5, 30.0])
def test_the_slope_of_log_ndtr_is_the_density_over_distribution(x):
    """Where a branch that is not taken has an infinite slope, it was nan."""
    traced = trace(torch.special.log_ndtr, [torch.tensor([x], dtype=torch.float64)])
    (slope,) = gradients(traced.graph(np.longdouble), {"y": np.ones(1)}).values()
    with precise():
        t = -flint.arb(x) / flint.arb(2).sqrt()
        density = (-t * t).exp() / (2 * flint.arb.pi()).sqrt()
        high = float(slope.value[0])
        got = flint.arb(high) + flint.arb(float(slope.value[0] - np.longdouble(high)))
        assert digits(got, density / (t.erfc() / 2)) > 15


@pytest.mark.filterwarnings("ignore")
def test_a_continued_sweep_keeps_what_is_recorded_and_names_findings(tmp_path):
    path = tmp_path / "float64.json"
    path.write_text(json.dumps([{"name": "exp", "samples": [], "not": []}]))
    sweep("float64", "expm1", "0/1", path)
    exp, expm1 = json.loads(path.read_text())
    assert exp["samples"] == []
    assert expm1["finding"] == "expm1"
    assert expm1["samples"]


def test_no_operator_has_two_rules():
    assert not ON_FLOATS.keys() & ON_VALUES.keys()


def test_looking_at_the_entries_leaves_pytorch_s_flags_free():
    next(entries(torch.float64))
    torch.backends.cudnn.benchmark = False
