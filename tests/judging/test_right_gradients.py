"""The campaign of right gradients: it can fail, and what it excuses is narrow."""

import itertools

import pytest

from gradwatch.impls import catalogue
from scripts.studies import right_gradients
from scripts.studies.right_gradients import DEFECTS, VALUES, Campaign, tried

IMAGE = {
    "op": "instance_norm",
    "backend": "torch_autograd",
    "tensor": "dx",
    "case": "1x3x4x5-3-3 eps=1e-05",
    "dtype": "float64",
    "values": "normal",
    "layout": "permuted",
    "longest": 20,
}
CHANNEL = IMAGE | {"case": "5x1x4x1-1-1 eps=1e-05"}
NORM = IMAGE | {
    "op": "rms_norm",
    "case": "3x8-8 eps=1e-06",
    "values": "near the root of overflow",
}
HIDDEN = IMAGE | {"op": "masked_attention", "case": "2x2x5x6", "tensor": "dk"}
HIDDEN |= {"values": "infnan"}


def covered(record):
    return any(defect.covers(record) for defect in DEFECTS)


@pytest.mark.parametrize("seen", [IMAGE, CHANNEL, NORM, HIDDEN])
def test_what_was_seen_is_a_known_defect(seen):
    assert covered(seen)


@pytest.mark.parametrize(
    "other",
    [
        IMAGE | {"layout": "contiguous"},
        IMAGE | {"tensor": "y"},
        IMAGE | {"case": "2x3x4x5-3-3 eps=1e-05"},
        IMAGE | {"backend": "torch_custom"},
        CHANNEL | {"layout": "sliced"},
        CHANNEL | {"case": "5x2x4x1-2-2 eps=1e-05"},
        NORM | {"tensor": "dweight"},
        NORM | {"values": "large"},
        NORM | {"op": "layer_norm"},
        HIDDEN | {"values": "mixed"},
        HIDDEN | {"tensor": "y"},
    ],
)
def test_what_is_only_like_a_known_defect_is_none(other):
    assert not covered(other)


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_a_wrong_gradient_is_rejected_and_a_right_one_is_not(factor, monkeypatch):
    def computed(problem, *_):
        step = catalogue.load_backend("numpy_manual").prepare(problem)
        step.forward()
        step.backward()
        result = step.read()
        for name, gradient in result.gradients.items():
            result.gradients[name] = (gradient * factor).astype(gradient.dtype)
        yield "numpy_manual", "", result

    monkeypatch.setattr(right_gradients, "computed", computed)
    monkeypatch.setattr(right_gradients, "DTYPES", ("float64",))
    monkeypatch.setattr(right_gradients, "VALUES", {"normal": VALUES["normal"]})
    campaign = Campaign()
    for number, name in itertools.product(range(3), ("mul", "softmax", "layer_norm")):
        tried(campaign, catalogue.load_op(name), 1, number)
    assert bool(campaign.rejected) is (factor != 1)
    assert not any(map(covered, campaign.rejected))
