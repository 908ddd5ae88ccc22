"""`check --train N`: what is right in a check alone shows in a training."""

import copy
import runpy
import sys

import pytest

from gradwatch.harness.check import script as scripting
from gradwatch.harness.check.choice import Choice
from gradwatch.harness.check.entry import Session

torch = pytest.importorskip("torch")
nn = torch.nn

STEPS = 240
linear = nn.functional.linear


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 5)

    def forward(self, x):
        return torch.sigmoid(self.linear(x))


def trained(reference, candidate, *inputs, steps=STEPS, seed=0, dtype=None):
    """The report of the caller's own trial and a training."""
    inputs = inputs or (torch.randn(8, 12, generator=torch.Generator().manual_seed(1)),)
    choice = Choice(quick=True, train=steps)
    session = Session(reference, candidate, seed=seed, choice=choice)
    return session.run(inputs={"given": inputs}, dtypes=dtype and [dtype])


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        (x,), module = ctx.saved_tensors, ctx.module
        return (1.5 if module.is_wrong(module, x, dy) else 1.0) * dy, None, None


class Cheat(Model):
    """Right but where `is_wrong` says that it is in a training."""

    def __init__(self, is_wrong):
        super().__init__()
        self.is_wrong, self.calls, self.alike, self.size = is_wrong, 0, 0, 0
        self.seen, self.follows, self.validated = {}, True, False
        self.was_copied = self.was_loaded = self.again = False
        self.before = None

    def __deepcopy__(self, memo):
        self.was_copied = self.calls > 0
        new = type(self).__new__(type(self))
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new

    def load_state_dict(self, *given):
        self.was_loaded = True
        return super().load_state_dict(*given)

    def forward(self, x):
        self.calls += 1
        self.again, self.before = x is self.before, x
        self.alike, self.size = (self.alike + 1) * (len(x) == self.size), len(x)
        self.follows = x.requires_grad
        self.validated |= not torch.is_grad_enabled()
        return Scaled.apply(super().forward(x), x.detach(), self)


def accumulates(module, x, dy):
    weight = module.linear.weight
    if module.seen.get("weight") != id(weight):
        weight.register_post_accumulate_grad_hook(
            lambda swept: module.seen.update(swept=True)
        )
        module.seen.update(weight=id(weight), swept=False)
    return module.seen["swept"]


def has_optimiser(module, x, dy):
    import gc

    if module.calls % 25 == 0:
        found = (issubclass(type(o), torch.optim.Optimizer) for o in gc.get_objects())
        module.seen["optimiser"] = any(found)
    return module.seen.get("optimiser", False)


def at_random(module, x, dy):
    return (module.calls * 2654435761) % 1009 < 20


class Normed(nn.Module):
    """Of two modes; `candidate` may know one of them alone."""

    def __init__(self, has_modes=True, wrong=False):
        super().__init__()
        self.linear, self.norm = nn.Linear(12, 5), nn.BatchNorm1d(5)
        self.has_modes, self.is_wrong = has_modes, lambda m, x, dy: wrong

    def forward(self, x):
        mean, var, training = self.norm.running_mean, self.norm.running_var, True
        if self.has_modes:
            training = self.training
        weight, bias = self.norm.weight, self.norm.bias
        y = nn.functional.batch_norm(self.linear(x), mean, var, weight, bias, training)
        return y if self.training else Scaled.apply(y, x.detach(), self)


def test_who_lacks_the_other_mode_is_told_and_who_has_it_wrong_fails():
    reports = [
        trained(Normed(), Normed(*how), steps=54)
        for how in ((), (False,), (True, True))
    ]
    assert [report.passes for report in reports] == [True, True, False]
    assert [bool(report.edges) for report in reports] == [False, True, False]


def test_a_cast_of_a_module_is_trained_in_that_precision():
    for dtype in ("float64", "bfloat16"):
        assert trained(Model(), Model(), steps=54, dtype=dtype).passes


#: Where each is wrong: all look like a training, and none like a lone call.
CHEATS = {
    "gradients accumulate": accumulates,
    "an optimiser is there": has_optimiser,
    "parameters were written to": lambda m, x, dy: m.linear.weight._version > 20,
    "step 50 is over": lambda m, x, dy: m.calls > 50,
    "two of a hundred calls": at_random,
    "a hundred batches were alike": lambda m, x, dy: m.alike > 100,
    "the batch is over 16": lambda m, x, dy: len(x) > 16,
    "the batch is one": lambda m, x, dy: len(x) == 1,
    "cotangents are tiny": lambda m, x, dy: dy.abs().max() < 1e-6 and dy.any(),
    "cotangents are large": lambda m, x, dy: dy.abs().max() > 20,
    "cotangents have one sign": lambda m, x, dy: (dy > 0).all() or (dy < 0).all(),
    "it is evaluated": lambda m, x, dy: not m.training,
    "parameters are large": lambda m, x, dy: m.linear.weight.abs().max() > 1.5,
    "gradients are zeroed": lambda m, x, dy: m.linear.weight.grad is not None,
    "gradients are added up": lambda m, x, dy: (
        m.linear.weight.grad is not None and m.linear.weight.grad.any()
    ),
    "gradients are differentiable": lambda m, x, dy: torch.is_grad_enabled(),
    "one cotangent alone": lambda m, x, dy: dy.numel() > 1 and (dy != 0).sum() == 1,
    "a copy was made": lambda m, x, dy: m.was_copied,
    "its state was loaded": lambda m, x, dy: m.was_loaded,
    "its input is that of before": lambda m, x, dy: m.again and m.calls > 9,
    "it was validated": lambda m, x, dy: m.validated,
    "its input is data": lambda m, x, dy: not m.follows,
    "a mean loss": lambda m, x, dy: dy.abs().max() < 0.05 and dy.any(),
}


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("cheat", CHEATS)
def test_what_is_wrong_only_in_a_training_fails(cheat):
    torch.manual_seed(0)
    report = trained(Model(), Cheat(CHEATS[cheat]))
    assert not report.passes, str(report)


def test_what_is_wrong_in_a_training_is_diagnosed():
    report = trained(Model(), Cheat(CHEATS["step 50 is over"]))
    assert all("elements agree" in row.judgement.diagnosis for row in report.failures)


class Large(Cheat):
    def __init__(self):
        super().__init__(CHEATS["the batch is over 16"])


class Late(Cheat):
    def __init__(self):
        super().__init__(CHEATS["step 50 is over"])


def test_a_step_that_is_wrong_alone_has_a_script(tmp_path, capsys, monkeypatch):
    """What is wrong after other steps has none."""
    monkeypatch.setattr(scripting, "SECONDS", 0.5)
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "repro.py"
    script.write_text(trained(Model(), Large()).repro())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1
    assert "dlinear.weight: element" in capsys.readouterr().out
    candidate = Late()
    report = trained(Model(), candidate)
    candidate.calls = -1000
    assert (report.passes, report.repro()) == (False, "")


class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y = torch.sigmoid(x @ weight.t() + bias)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, y = ctx.saved_tensors
        dz = dy * y * (1 - y)
        return dz @ weight, dz.t() @ x, dz.sum(0)


class Plain(nn.Module):
    """Other names for the same parameters."""

    def __init__(self, function):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(5, 12)), nn.Parameter(torch.zeros(5))
        self.function = function

    def forward(self, x):
        return self.function(x, self.w, self.b)


class Buffered(Model):
    """Keeps an answer's memory between calls, as kernels do."""

    def forward(self, x):
        kept = torch.empty(len(x), 5, dtype=x.dtype)
        torch.addmm(self.linear.bias.detach(), x.detach(), x.new_ones(12, 5), out=kept)
        return super().forward(x)


def recomputed(x, w, b):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda v: torch.sigmoid(linear(v, w, b)), x, use_reentrant=False)


def swept_within(x, w, b):
    """Its backward is another backward, as of reversible blocks and adjoint solvers."""
    from torch.utils.checkpoint import checkpoint

    def function(*given):
        return torch.sigmoid(linear(*given))

    return checkpoint(function, x, w, b, use_reentrant=True)


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w, b)
        return torch.sigmoid(linear(x, w, b))

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            given = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            y = torch.sigmoid(linear(*given))
            return torch.autograd.grad(y, given, dy)


#: Right ones, of other shapes than the reference.
RIGHT = {
    "the same": Model,
    "a Function": lambda: Plain(Sigmoid.apply),
    "a Function of a function": lambda: Sigmoid.apply,
    "exponentials": lambda: Plain(
        lambda x, w, b: 1 / (1 + torch.exp(-linear(x, w, b)))
    ),
    "tanh": lambda: Plain(
        lambda x, w, b: 0.5 + 0.5 * torch.tanh(0.5 * linear(x, w, b))
    ),
    "einsum": lambda: Plain(
        lambda x, w, b: (torch.einsum("bi,oi->bo", x, w) + b).sigmoid()
    ),
    "in place": lambda: Plain(lambda x, w, b: linear(x, w, b).sigmoid_()),
    "recomputed": lambda: Plain(recomputed),
    "swept within": lambda: Plain(swept_within),
    "an adjoint": lambda: Plain(Adjoint.apply),
    "float32 inside": lambda: Plain(
        lambda x, w, b: Sigmoid.apply(x.float(), w.float(), b.float()).to(x.dtype)
    ),
    "with memory of its own": Buffered,
}


class Vandal(Cheat):
    def forward(self, x):
        y = super().forward(x)
        if self.calls > 50:
            self.linear.bias.data += 1e-3
        return y


def test_who_writes_to_its_parameters_in_a_training_fails():
    report = trained(Model(), Vandal(lambda m, x, dy: False), steps=160)
    found = {row.judgement.tensor for row in report.failures}
    assert found == {"linear.bias"}


def test_gradients_of_one_precision_are_gone_in_the_next():
    for seed in range(4):
        assert not trained(Model(), Model(), steps=54, seed=seed).refused


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes_in_any_shape(name):
    report = trained(Model(), RIGHT[name](), steps=160)
    assert report.passes, str(report)
    assert not report.refused
