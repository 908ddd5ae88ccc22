"""The values that a candidate saves for its backward are known, to the bit."""

from __future__ import annotations

import copy
import runpy
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import affine_grid, grid_sample, rms_norm

import gradwatch
from gradwatch.harness.judging.precisions import arithmetics
from gradwatch.harness.judging.rounding.analysis import running_errors
from gradwatch.harness.tracing.traced import Traced, trace
from gradwatch.impls.graph import gradient, topological_order
from tests.check.test_networks import plant


class Deep(nn.Module):
    """Steep layers, of which each makes the rounding errors before it larger."""

    def __init__(self, norm, layers=8, width=16):
        super().__init__()
        self.norm, self.parts = norm, nn.ModuleList()
        self.sines = [torch.sin] * layers
        for _ in range(layers):
            self.parts.append(nn.Linear(width, width, bias=False))
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        for part, sine in zip(self.parts, self.sines, strict=True):
            x = sine(4 * part(self.norm(x, self.scale)))
        return x


def norm(x, scale):
    return rms_norm(x, scale.shape, scale, 1e-5)


class Own(torch.autograd.Function):
    """The norm by a kernel of its own, which rounds once; `factor` is 1 if right."""

    @staticmethod
    def forward(ctx, x, scale, factor):
        wide = x.float()
        root = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(x, scale, root)
        ctx.factor = factor
        return (wide * root * scale).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, scale, root = ctx.saved_tensors
        normed, g = x.float() * root, dy.float() * scale
        left = (g * normed).mean(-1, keepdim=True)
        dx = root * (g - ctx.factor * normed * left)
        dscale = (dy.float() * normed).flatten(0, -2).sum(0)
        return dx.to(x.dtype), dscale.to(x.dtype), None


def deep(how=norm):
    torch.manual_seed(0)
    net = Deep(how).bfloat16()
    return net, torch.randn(8, 16).bfloat16()


def verdicts(found):
    return {j.tensor: j.verdict for j in found}


def test_in_a_deep_network_a_tenth_is_seen_of_each_tensor():
    net, x = deep()
    found = gradwatch.check(net, inputs=[x], quick=True)
    assert {*verdicts(found).values()} == {"agree"}, str(found)
    wrong = copy.deepcopy(net)
    wrong.register_forward_pre_hook(plant("parts.0", "weight", lambda d: 1.1 * d))
    found = gradwatch.check(net, wrong, [x], quick=True)
    bad = {t: v for t, v in verdicts(found).items() if v != "agree"}
    assert bad == {"dparts.0.weight": "disagree"}, str(found)


@pytest.mark.parametrize("factor", [1.0, 0.0])
def test_a_kernel_that_saves_its_own_numbers_is_judged_by_these(factor):
    net, x = deep()
    own, _ = deep(lambda x, scale: Own.apply(x, scale, factor))
    found = gradwatch.check(net, own, [x], quick=True)
    assert found.passes == (factor == 1.0), str(found)
    if factor == 1.0:
        assert {*verdicts(found).values()} == {"agree"}, str(found)
    else:
        assert verdicts(found)["dx"] == "disagree"


def test_what_an_operator_chooses_within_is_not_kept():
    """In bfloat16 grid_sample finds other cells than exact arithmetic does."""

    def turned(x, t):
        t = torch.tensor([1.0, 0, 0, 0, 1, 0]).to(t) + 0.1 * t
        grid = affine_grid(t.view(2, 2, 3), x.shape, align_corners=False)
        return grid_sample(x, grid, align_corners=False)

    torch.manual_seed(3)
    inputs = [torch.randn(shape).bfloat16() for shape in ((2, 3, 8, 8), (2, 6))]
    assert not gradwatch.check(turned, inputs=inputs).failures


def logistic(x):
    for _ in range(4):
        x = 3.7 * x * (1 - x)
    return x


class Larger(torch.autograd.Function):
    """x, whose gradient is three times too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return 3 * dy


def larger(x):
    return Larger.apply(logistic(x))


def test_a_script_shows_what_the_kept_values_tell(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])

    x = torch.tensor([0.2, 0.3, 0.4, 0.7]).bfloat16()
    found = gradwatch.check(logistic, larger, [x], quick=True)
    assert verdicts(found)["dx"] == "disagree", str(found)
    script = tmp_path / "repro.py"
    script.write_text(found.repro())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1
    assert "dx: element" in capsys.readouterr().out


class Squared(torch.autograd.Function):
    """A sine, whose backward squares the cosine."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0].cos().square()


def test_a_mistake_deep_in_a_network_is_named_in_bfloat16():
    net, x = deep()
    wrong, _ = deep()
    wrong.sines = [torch.sin] * 3 + [Squared.apply] + [torch.sin] * 4
    found = gradwatch.check(net, wrong, [x], quick=True)
    bad = {j.tensor: j.diagnosis for j in found if j.verdict != "agree"}
    assert {*bad} == {"dx", "dscale", *(f"dparts.{i}.weight" for i in range(4))}
    for said in bad.values():
        assert said.startswith("the gradient of `sin(((...) @ (...)) * 4)` is multipl")
        assert "by `cos(((...) @ (...)) * 4)`: with this, all 1168 elements" in said


KINKS = [nn.ReLU(), nn.ReLU6(inplace=True)]


@pytest.mark.parametrize("kink", KINKS, ids=str)
def test_behind_a_norm_in_training_the_kept_results_tell_what_was_chosen(kink):
    """PyTorch keeps statistics in bfloat16, and so moves what lies near a kink."""
    torch.manual_seed(1)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), kink),
        *(nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(128, 4)),
    ).bfloat16()
    x = torch.randn(4, 3, 8, 8).bfloat16()
    found = gradwatch.check(net, inputs=[x], quick=True)
    assert {*verdicts(found).values()} <= {"agree", "convention"}, str(found)
    wrong = copy.deepcopy(net)
    wrong.register_forward_pre_hook(plant("0", "weight", lambda d: 1.1 * d))
    found = gradwatch.check(net, wrong, [x], quick=True)
    bad = {t for t, v in verdicts(found).items() if v not in ("agree", "convention")}
    assert bad == {"d0.weight"}, str(found)


def test_a_module_with_buffers_is_judged_by_its_values_too():
    """In evaluation the statistics are buffers, which no call changes."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()]
    for _ in range(5):
        layers += [nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6()]
        nn.init.normal_(layers[-3].weight, std=0.3)
    net, x = nn.Sequential(*layers).bfloat16().eval(), torch.randn(2, 3, 14, 14)
    wrong = copy.deepcopy(net)
    wrong.register_forward_pre_hook(plant("3", "weight", lambda d: 1.1 * d))
    found = gradwatch.check(net, wrong, [x.bfloat16()], quick=True)
    bad = {t: v for t, v in verdicts(found).items() if v not in ("agree", "convention")}
    assert bad == {"d3.weight": "disagree"}, str(found)


def is_known(node):
    return node.primitive is not None and node.primitive.name == "cast.fact"


def chain(x):
    return ((x * 3).exp() / 7).sin()


def kept(change):
    """How many values of a chain are those that are saved, if these are changed."""
    x = torch.linspace(0.1, 1, 9).bfloat16()
    saved = change((x * 3).exp())
    known = trace(chain, [x]).keeping([saved])
    return len(known.facts)


def test_a_value_is_kept_if_it_is_within_a_unit_in_the_last_place():
    assert kept(lambda y: y) == 1
    assert kept(lambda y: torch.nextafter(y, y + 1)) == 1
    assert kept(lambda y: 1.02 * y) == 0
    assert kept(lambda y: torch.zeros_like(y)) == 0
    assert kept(lambda y: torch.full_like(y, torch.inf)) == 0
    assert kept(lambda y: y.float()) == 0  # finer than what is computed
    assert kept(lambda y: y[:8]) == 0
    assert kept(lambda y: y.reshape(3, 3)) == 0


def test_a_coarser_copy_is_kept_if_each_element_is_near():
    x = torch.linspace(0.1, 1, 9)
    made = (x * 3).exp()
    known = trace(chain, [x])
    assert len(known.keeping([made.bfloat16()]).facts) == 1
    off = made.bfloat16()
    off[0] *= 1.05  # of the whole it is less than a unit
    assert len(known.keeping([off]).facts) == 0


def test_a_kept_value_is_off_by_a_rounding_or_by_its_distance():
    x = torch.linspace(0.1, 1, 9).bfloat16()
    made = (x * 3).exp()
    right = trace(chain, [x]).keeping([made]).graph()
    (known,) = (n for n in topological_order(right.outputs.values()) if is_known(n))
    assert (known.value == made.double().numpy()).all()
    order = topological_order([known])
    errors = running_errors(order, arithmetics("bfloat16", None)[-1], 16.0).errors
    off = np.abs(known.value - known.inputs[0].value) * 2**8
    assert errors[known] == pytest.approx(np.maximum(known.value, off))
    (dx,) = gradient([right.outputs["y"]], [np.ones(9)], [right.leaves["x"]])
    exact = 3 * known.value / 7 * np.cos(known.value / 7)
    assert dx.value == pytest.approx(exact)


def test_a_large_tensor_is_judged_at_its_farthest_elements_without_them(monkeypatch):
    """There they tell nothing, and cost ten times the rest (36 s of a softmax)."""
    factor = torch.ones(2048, 1024)
    factor[0, 1000] = 1.01

    def wrong(x):
        x = x * 1
        x.register_hook(lambda dx: factor * dx)
        return x.softmax(-1)

    kept, x = [], torch.randn(2048, 1024)
    monkeypatch.setattr(Traced, "keeping", lambda *given: kept.append(given))
    report = gradwatch.check(lambda x: x.softmax(-1), wrong, [x], quick=True)
    (failure,) = report.failures
    assert failure.judgement.tensor == "dx"
    assert failure.judgement.worst_index == (0, 1000)
    assert not kept


def test_a_right_tensor_of_which_parts_are_judged_is_judged_once(monkeypatch):
    """In 16 bits an element tells little: kept values told no more, in as long."""
    kept, causal = [], {"is_causal": True}
    monkeypatch.setattr(Traced, "keeping", lambda *given: kept.append(given))
    torch.manual_seed(0)
    given = [torch.randn(1, 3, 600, 16).half() for _ in range(3)]
    attention = torch.nn.functional.scaled_dot_product_attention
    assert gradwatch.check(attention, inputs=given, kwargs=causal, quick=True).passes
    assert not kept
