"""The campaign of right gradients: it can fail, and what it excuses is narrow."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.impls import catalogue
from scripts.studies import right_gradients
from scripts.studies.right_gradients import VALUES, Campaign, is_known, tried

IMAGE = {
    "op": "instance_norm",
    "backend": "torch_autograd",
    "tensor": "dx",
    "case": "1x3x4x5-3-3 eps=1e-05",
    "dtype": "float64",
    "regime": "normal",
    "layout": "permuted",
}
CHANNEL = IMAGE | {"case": "5x1x4x1-1-1 eps=1e-05"}
NORM = IMAGE | {
    "op": "rms_norm",
    "case": "3x8-8 eps=1e-06",
    "regime": "near the root of overflow",
}
HIDDEN = IMAGE | {"op": "masked_attention", "case": "2x2x5x6", "tensor": "dk"}
HIDDEN |= {"regime": "infnan"}
ADDED = IMAGE | {
    "op": "layer_norm",
    "dtype": "bfloat16",
    "tensor": "dbias",
    "rows": 257,
}
GAINED = ADDED | {"tensor": "dweight"}
ELU = IMAGE | {"op": "elu", "backend": "torch_formula", "dtype": "bfloat16", "x": -2.5}
RMS = IMAGE | {"op": "rms_norm", "dtype": "float32", "x": 1e9, "dy": 1e30}
RMS |= {"verdict": "nonfinite"}
ALONE = IMAGE | {"op": "layer_norm", "tensor": "dweight", "case": "1-1-1 eps=1e-05"}
STUCK = IMAGE | {"op": "prod", "backend": "torch_custom", "dtype": "float16"}
STUCK |= {"x": 1e-3}
SLOPE = IMAGE | {"op": "softplus", "dtype": "bfloat16", "x": 25.5, "dy": 1e30}
SLOPE |= {"verdict": "nonfinite"}
FLUSHED = IMAGE | {"op": "masked_attention", "backend": "torch_custom", "tensor": "dq"}
FLUSHED |= {"dtype": "bfloat16", "v": 1e-40}
REST = IMAGE | {"op": "avg_pool2d", "dtype": "bfloat16", "tensor": "y"}
REST |= {"regime": "binades", "backend": "torch_custom"}
PLACES = IMAGE | {"op": "conv2d", "backend": "torch_custom"}
PLACES |= {"dtype": "bfloat16", "tensor": "y"}
PLACES |= {"weight": np.ones((3, 1, 17, 17), np.float32)}


def covered(seen):
    op = catalogue.load_op(seen["op"])
    case = next(iter(op.cases.values()))
    drawn = trial(op, case, REGIMES["normal"], seen["dtype"])
    if rows := seen.get("rows"):
        x = np.ones((rows, *drawn.problem.inputs["bias"].shape), np.float32)
        inputs = {**drawn.problem.inputs, "x": x}
        drawn = replace(drawn, problem=replace(drawn.problem, inputs=inputs))
    if "weight" in seen:
        inputs = {**drawn.problem.inputs, "weight": seen["weight"]}
        drawn = replace(drawn, problem=replace(drawn.problem, inputs=inputs))
    if "v" in seen:
        inputs = {**drawn.problem.inputs}
        inputs["v"] = np.full_like(inputs["v"], seen["v"])
        drawn = replace(drawn, problem=replace(drawn.problem, inputs=inputs))
    if at := seen.get("x"):
        dy = [np.full_like(a, seen.get("dy", 1.0)) for a in drawn.problem.cotangents]
        inputs = {n: np.full_like(a, 1.0) for n, a in drawn.problem.inputs.items()}
        inputs["x"] = np.full_like(inputs["x"], at)
        problem = replace(drawn.problem, inputs=inputs, cotangents=dy)
        drawn = replace(drawn, problem=problem)
    drawn = replace(drawn, **{n: seen[n] for n in ("case", "regime", "layout")})
    judgement = Judgement(seen["tensor"], seen.get("verdict", "disagree"))
    return is_known(drawn, seen["backend"], "2.13.0+cpu", judgement)


@pytest.mark.parametrize(
    "seen",
    [
        *(IMAGE, CHANNEL, NORM, HIDDEN, ADDED, GAINED, ELU, RMS, ALONE, STUCK),
        *(PLACES, SLOPE, FLUSHED, REST),
    ],
)
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
        NORM | {"regime": "large"},
        NORM | {"op": "layer_norm"},
        HIDDEN | {"regime": "mixed"},
        HIDDEN | {"tensor": "y"},
        ADDED | {"rows": 256},
        ADDED | {"dtype": "float32"},
        ELU | {"x": -2.0, "regime": "large"},
        ELU | {"backend": "torch_autograd"},
        RMS | {"dy": 1e25},
        RMS | {"verdict": "disagree"},
        ALONE | {"case": "1x2-2-2 eps=1e-05"},
        ALONE | {"tensor": "dbias"},
        STUCK | {"dtype": "bfloat16"},
        STUCK | {"tensor": "y"},
        STUCK | {"x": 1.0},
        SLOPE | {"x": 5.0},
        SLOPE | {"verdict": "disagree"},
        FLUSHED | {"v": 1.0},
        FLUSHED | {"dtype": "float32"},
        REST | {"regime": "large"},
        PLACES | {"dtype": "float16"},
        PLACES | {"tensor": "dx"},
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
    assert not any(record["known"] for record in campaign.rejected)
