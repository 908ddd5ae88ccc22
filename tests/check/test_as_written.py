"""References and candidates as people write and train them are judged as they are."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  # after importorskip
from torch.nn import functional as F  # noqa: E402, N812  # likewise; as in its docs
from torch.utils.checkpoint import checkpoint  # noqa: E402  # likewise

from gradwatch.harness.check import check  # noqa: E402  # likewise
from gradwatch.harness.tracing import Untraceable  # noqa: E402  # likewise

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.second.weight = nn.Parameter(
            self.first.weight.detach()[:4, :1] + X[:4, :1]
        )
        self.second = nn.Linear(8, 6, bias=False)
        self.register_buffer("scale", torch.tensor(2.0))

    def inner(self, x):
        return self.second(torch.tanh(self.first(x))) * self.scale

    def forward(self, x):
        return self.inner(x)


class Checkpointed(Plain):
    reentrant = False

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Reentrant(Checkpointed):
    reentrant = True


class Tiled(torch.autograd.Function):
    """Runs a module tile by tile, and once more in its backward, for its own grads."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return torch.cat([module.inner(tile) for tile in x.chunk(2)])

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            tiles = [ctx.module.inner(tile) for tile in x.chunk(2)]
        for tile, part in zip(tiles, dy.chunk(2), strict=True):
            torch.autograd.backward(tile, part)
        return None, x.grad, *(None for _ in ctx.module.parameters())


class TiledModule(Plain):
    def forward(self, x):
        return Tiled.apply(self, x, *self.parameters())


class Adjoint(torch.autograd.Function):
    """Euler's steps, whose backward asks for each step's gradients once more."""

    @staticmethod
    def forward(ctx, field, x, *parameters):
        ctx.field, steps = field, [x]
        with torch.no_grad():
            for _ in range(3):
                steps.append(steps[-1] + field(steps[-1]) / 8)
        ctx.save_for_backward(*steps[:-1])
        return steps[-1]

    @staticmethod
    def backward(ctx, dy):
        own = [*ctx.field.parameters()]
        wanted = [p for p in own if p.requires_grad]
        total = [torch.zeros_like(p) for p in wanted]
        for step in reversed(ctx.saved_tensors):
            with torch.enable_grad():
                x = step.detach().requires_grad_()
                found = torch.autograd.grad(ctx.field(x), (x, *wanted), dy / 8)
            dy = dy + found[0]
            total = [t + g for t, g in zip(total, found[1:], strict=True)]
        grads = iter(total)
        return None, dy, *(next(grads) if p.requires_grad else None for p in own)


class Solved(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, x):
        return Adjoint.apply(self.field, x, *self.field.parameters())


class Euler(Solved):
    def forward(self, x):
        for _ in range(3):
            x = x + self.field(x) / 8
        return x


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, dy):
        return dy * 1.01


class WrongCheckpointed(Checkpointed):
    def inner(self, x):
        return super().inner(Wrong.apply(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", [Checkpointed, Reentrant, TiledModule])
def test_a_module_that_runs_its_forward_again_in_the_backward_is_judged(kind):
    candidate = kind()
    before = {name: tensor.clone() for name, tensor in candidate.state_dict().items()}
    found = check(Plain(), candidate, [X])
    assert found.passes, str(found)
    for name, tensor in candidate.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(p.grad is None for p in candidate.parameters())


def test_a_wrong_gradient_of_a_checkpointed_module_is_seen():
    assert check(Plain(), WrongCheckpointed(), [X]).failures


class Once(torch.autograd.Function):
    """Asks the module what its forward has left there, and forgets what it kept."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module, ctx.x = module, x.detach()
        module.sign = torch.ones(1)
        with torch.no_grad():
            return module.inner(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.x.requires_grad_()
        del ctx.x
        with torch.enable_grad():
            y = ctx.module.inner(x)
        torch.autograd.backward(y, dy * ctx.module.sign * ctx.module.factor)
        return x.grad, None


class OnceModule(Plain):
    factor = 1.0
    sign = None

    def forward(self, x):
        return Once.apply(x, self)


def test_what_a_forward_leaves_in_its_module_is_there_in_the_backward():
    module = OnceModule()
    assert check(Plain(), module, [X.clone().requires_grad_()]).passes
    assert module.sign is None
    module.factor = 1.001
    found = check(Plain(), module, [X.clone().requires_grad_()], quick=True)
    wrong = {j.tensor for j in found if not j.passes}
    assert {"dx", "dfirst.weight", "dsecond.weight"} <= wrong


def test_inputs_that_a_forward_frees_are_judged():
    """The backward has them again, as a block has that recovers its inputs."""

    class Freed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x, ctx.kept = x, x.detach().clone()
            y = x.sin()
            x.untyped_storage().resize_(0)
            return y

        @staticmethod
        def backward(ctx, dy):
            ctx.x.untyped_storage().resize_(ctx.kept.untyped_storage().nbytes())
            ctx.x.detach().copy_(ctx.kept)
            return dy * ctx.kept.cos()

    found = check(Freed.apply, None, [X], quick=True)
    assert found.passes, str(found)


def test_an_adjoint_solver_is_judged_by_the_steps_that_it_takes():
    found = check(Euler(), Solved(), [X])
    assert found.passes, str(found)
    assert check(Euler(), lambda x, *p: Adjoint.apply(nn.Tanh(), x), [X]).failures


class Couplings(nn.Module):
    """Blocks of two couplings each, as a reversible network has them."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(4)
        )

    def forward(self, x):
        a, b = x.chunk(2, -1)
        for f, g in zip(self.parts[::2], self.parts[1::2], strict=True):
            a = a + f(b)
            b = b + g(a)
        return torch.cat([a, b], -1)


class Inverted(torch.autograd.Function):
    """Keeps what comes out alone, and recovers all that went in by subtraction."""

    @staticmethod
    def forward(ctx, module, factor, x, *_):
        ctx.module, ctx.factor = module, factor
        with torch.no_grad():
            y = Couplings.forward(module, x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (b, a), (db, da) = (t.chunk(2, -1)[::-1] for t in (*ctx.saved_tensors, dy))
        grads = {}
        for part in reversed(ctx.module.parts):
            own = [p for p in part.parameters() if p.requires_grad]
            with torch.enable_grad():
                a = a.detach().requires_grad_()
                y = part(a)
                found = torch.autograd.grad(y, (a, *own), db)
            grads |= zip(own, found[1:], strict=True)
            a, b, da, db = b - y.detach(), a, db, da + found[0]
        grads = [grads.get(p) for p in ctx.module.parameters()]
        grads[0] = grads[0] if grads[0] is None else ctx.factor * grads[0]
        return None, None, torch.cat([da, db], -1), *grads


class Reversible(Couplings):
    factor = 1.0

    def forward(self, x):
        return Inverted.apply(self, self.factor, x, *self.parameters())


def test_a_reversible_network_may_lose_what_recovering_its_inputs_loses():
    found = check(Couplings(), Reversible(), [X], only=["tiny", "large"])
    assert found.passes, str(found)
    assert {j.tensor for j in found if j.verdict == "imprecise"} == {
        "dparts.0.0.weight"
    }


def test_what_recovering_loses_excuses_no_mistake():
    wrong = Reversible()
    wrong.factor = 1.01  # recovering may lose a thousandth
    found = check(Couplings(), wrong, [X], only=["tiny"])
    assert {row.trial for row in found.failures} == {"given", "given, tiny"}


def test_what_depends_on_an_input_itself_cannot_be_recovered_from_its_sum():
    """A residual block finds its weight's gradient from an input that has lost."""

    class Residual(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            y = x + torch.tanh(x @ w + 1)
            ctx.save_for_backward(y, x, w)
            return y

        @staticmethod
        def backward(ctx, dy):
            y, x, w = ctx.saved_tensors
            inner = dy * (1 - torch.tanh(x @ w + 1).square())
            lost = y - torch.tanh(x @ w + 1)
            return dy + inner @ w.t(), lost.t() @ inner

    given = 1e-5 * X, torch.eye(6)
    found = check(
        lambda x, w: x + torch.tanh(x @ w + 1), Residual.apply, given, quick=True
    )
    assert {j.tensor for j in found if not j.passes} == {"dw"}


def test_a_module_gets_its_own_tensors_back_after_an_exception():
    class Raising(Plain):
        def forward(self, x):
            raise ArithmeticError

    module = Raising()
    own = dict(module.named_parameters())
    assert check(Plain(), module, [X]).failures
    assert all(own[name] is tensor for name, tensor in module.named_parameters())


class Remembering(nn.Module):
    """Keeps a tensor between calls."""

    def __init__(self):
        super().__init__()
        self.cell, self.state = nn.Linear(12, 6), torch.zeros(5, 6)

    def forward(self, x):
        self.state = torch.tanh(self.cell(torch.cat([x, self.state], 1)))
        return self.state


def test_a_module_that_keeps_a_tensor_is_called_from_the_same_state_each_time():
    module = Remembering()
    assert check(module, None, [X]).passes
    assert not module.state.any()


class OneNarrowLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(6, 8), nn.Linear(8, 4).bfloat16()

    def forward(self, x):
        return self.narrow(self.wide(x).bfloat16()).float()


def test_every_tensor_keeps_its_type():
    assert check(OneNarrowLayer(), None, [X]).passes
    weight = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    mixed = [X.bfloat16(), weight]
    found = check(lambda x, w: (x.float() @ w).tanh(), None, mixed)
    assert found.passes, str(found)
    assert check(
        lambda x, w: (x.float() @ w).tanh(), times_one_and_a_half, mixed
    ).failures


def times_one_and_a_half(x, w):
    return (1.02 * x.float() @ w).tanh()


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.no_grad,
        torch.inference_mode,
    ],
)
def test_what_the_caller_has_set_stays_outside(around):
    with around():
        found = check(lambda x, w: torch.tanh(x @ w), None, [X.clone(), X.t().clone()])
    assert found.passes, str(found)


MASK = torch.tensor([1, 1, 0, 1, 1])
LENGTHS = torch.tensor([1, 3, 5])
DECIDED = {
    "if mask.all()": (lambda x, m: x * 2 if m.bool().all() else x.sin(), [X, MASK]),
    "in": (lambda x, m: x * 2 if 0 in m else x.sin(), [X, MASK]),
    "item": (lambda x, m: x[: m.sum().item()].sin(), [X, MASK]),
    "tolist": (
        lambda x, n: torch.stack([x[:k].sum() for k in n.tolist()]).sin(),
        [X, LENGTHS],
    ),
    "one_hot": (lambda x, m: x[:, :2] * F.one_hot(m), [X, MASK]),
    "numpy": (lambda x, m: x.t() * torch.from_numpy(m.numpy() * 2), [X, MASK]),
    "cond": (
        lambda x: torch.cond(x.sum() > 100, torch.sin, torch.cos, (x,)),
        [X],
    ),
    "repeat": (lambda x, n: x[:3].repeat_interleave(n, 0).sin(), [X, LENGTHS]),
    "nonzero": (lambda x, m: x[m.nonzero()[:, 0]].sin(), [X, MASK]),
    "float": (lambda x: x.sin() if x.max().item() < 100 else x, [X]),
}


@pytest.mark.parametrize("name", DECIDED)
def test_a_value_may_decide(name):
    function, inputs = DECIDED[name]
    found = check(function, None, inputs)
    assert found.passes, str(found)


def test_packed_sequences_and_masked_transformers_are_judged():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.GRU(6, 3, batch_first=True)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            return nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0])[0]

    assert check(Packed(), None, [X.expand(3, 5, 6).clone(), LENGTHS]).passes
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    words = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    given = {"inputs": [words, words], "kwargs": {"tgt_mask": mask}}
    assert check(model, None, **given, quick=True).passes


LEFT_OUT = {
    "view": (lambda x: x.view(-1, 3).sin(), [X], "permuted"),
    "nan": (torch.logit, [X.sigmoid()], "large"),
    "domain": (F.binary_cross_entropy, [X.sigmoid(), X.sigmoid()], "large"),
}


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor | None = None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_functions_and_modules_are_judged():
    scripted = torch.jit.script(times_two)
    assert check(scripted, None, [X, X.t()]).passes
    module = torch.jit.script(nn.Sequential(nn.Linear(6, 4), nn.Tanh()))
    before = [p.clone() for p in module.parameters()]
    assert check(module, None, [X]).passes
    assert all(map(torch.equal, before, module.parameters()))


def times_two(x: torch.Tensor, w: torch.Tensor):
    return torch.tanh(x @ w) * 2.0


def test_a_product_by_groups_of_rows_is_judged():
    rows, ends = torch.randn(4, 8), torch.tensor([1, 1, 4], dtype=torch.int32)
    experts = torch.randn(3, 8, 4).requires_grad_()
    call = [rows.requires_grad_(), experts, ends]
    product = F.grouped_mm(rows, experts, offs=ends)
    assert torch.allclose(product[1:], rows[1:] @ experts[2], atol=1e-5)
    assert check(lambda a, b, n: F.grouped_mm(a, b, offs=n), None, call).passes


def test_numbers_that_must_ascend_are_judged():
    def weighted(x, times):
        assert (times.diff() > 0).all(), "times ascend"
        return (x * times.diff()).sum(-1)

    times = torch.linspace(0, 1, 7).requires_grad_()
    report = check(weighted, weighted, [X.clone().requires_grad_(), times])
    assert report.passes
    assert not report.refused


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_rows_that_no_label_chooses_are_judged():
    layer = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [5, 12])
    labels = torch.tensor([0, 3, 4, 7, 1])  # none in the last cluster
    assert check(layer, None, [X, labels], quick=True).passes


def test_outputs_in_a_dataclass_are_judged():
    report = check(lambda x: Output(x.square().sum(), x.exp()), None, [X])
    assert report.passes
    assert {j.tensor for j in report} == {"y0", "y1", "dx"}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_with_a_score_function_is_judged_on_a_cpu():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    qkv = torch.randn(3, 1, 2, 5, 4, generator=torch.manual_seed(0)).unbind()

    def candidate(q, k, v):
        place = torch.arange(5.0)
        scores = q @ k.mT / 2 + (place[:, None] - place) / 8
        return scores.softmax(-1) @ v

    def reference(q, k, v):
        return flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j) / 8)

    assert check(reference, candidate, qkv).passes
    assert not check(reference, lambda q, k, v: candidate(q, k, v) * 1.001, qkv).passes


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_whose_scores_read_a_tensor_is_traced_by_what_it_runs():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    qkv, bias = [torch.randn(1, 1, 4, 2) for _ in range(3)], torch.randn(4, 4)

    def reference(q, k, v, bias):
        return flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[i, j])

    def candidate(q, k, v, bias):
        return (q @ k.mT / 2**0.5 + bias).softmax(-1) @ v

    assert check(reference, candidate, [*qkv, bias], quick=True).passes
    turned = lambda q, k, v, b: candidate(q, k, v, b.mT)  # noqa: E731  # planted
    assert not check(reference, turned, [*qkv, bias], quick=True).passes


def test_a_function_under_vmap_is_followed_by_its_forward():
    class Square(torch.autograd.Function):
        generate_vmap_rule = True
        factor = 2

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, dy):
            return Square.factor * dy * ctx.saved_tensors[0]

    def mapped(x):
        return torch.vmap(Square.apply)(x)

    assert check(mapped, shapes=[(3, 4)], quick=True).passes
    Square.factor = 2.01
    assert not check(mapped, shapes=[(3, 4)], quick=True).passes


def test_an_input_by_which_pytorch_has_no_gradient_asks_for_marks():
    def loss(x, weight):
        return F.cross_entropy(x, torch.tensor([0, 1, 2, 2, 3]), weight)

    with pytest.raises(Untraceable, match=r"test_as_written.py.*requires_grad_"):
        check(loss, None, [X, torch.rand(6)])
    assert check(loss, None, [X.clone().requires_grad_(), torch.rand(6)]).passes


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_trial_that_the_reference_refuses_is_left_out_with_a_note(name):
    function, inputs, trial = LEFT_OUT[name]
    found = check(function, None, inputs)
    assert found.passes, str(found)
    assert any(trial in note and "left out" in note for note in found.notes)


def windowed(x):
    return x * torch.hann_window(1024, dtype=x.dtype)


def by_cosine(x):
    n = torch.arange(1024, dtype=x.dtype)
    return x * (0.5 - 0.5 * torch.cos(2 * torch.pi / 1024 * n))


def on_a_grid(x):
    return x * torch.linspace(-2, 2, 1024).to(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("table", [windowed, on_a_grid])
def test_a_table_is_off_by_roundings_of_its_largest_element(table, dtype):
    only = {"shapes": [(2, 1024)], "dtypes": dtype, "quick": True}
    assert check(table, table, **only).passes
    assert not check(table, lambda x: table(x) + 3e-6 * x, **only).passes


def test_a_window_may_be_computed_from_its_formula():
    only = {"shapes": [(2, 1024)], "dtypes": "float32", "quick": True}
    assert check(windowed, by_cosine, **only).passes
    symmetric = check(windowed, lambda x: x * torch.hann_window(1024, False), **only)
    assert not symmetric.passes


def test_pytorch_s_own_steps_warn_of_nothing():
    """Its decomposition of a layer norm does, for no rows."""

    def norm(x):
        return F.layer_norm(x, x.shape[-1:])

    report = check(norm, norm, shapes=[(3, 4)], dtypes="float32")
    assert "Warning" not in str(report)
    assert "empty 0x4" in {row.trial for row in report.rows}


def penalty(x, w, factor=1.0):
    """The slope of a critic, at a leaf of its own, and its value."""
    at = x.detach().requires_grad_()
    slope = torch.autograd.grad((at @ w).tanh().sum(), at, create_graph=True)[0]
    return slope.square().sum() * factor + (x @ w).sum()


@pytest.mark.parametrize("factor", [1, 1.01])
def test_a_function_may_differentiate_at_a_leaf_of_its_own(factor):
    given = [X, torch.randn(6, 3, generator=torch.manual_seed(0))]
    wrong = None if factor == 1 else lambda x, w: penalty(x, w, factor)
    found = check(penalty, wrong, [t.requires_grad_() for t in given], quick=True)
    assert found.passes is (factor == 1), str(found)


class Rows(torch.autograd.Function):
    """An embedding whose gradient is sparse, and counts a row as often as it occurs."""

    @staticmethod
    def forward(ctx, table, rows, factor):
        ctx.given = rows, table.shape, factor
        return table[rows]

    @staticmethod
    def backward(ctx, dy):
        rows, shape, factor = ctx.given
        return torch.sparse_coo_tensor(rows[None], factor * dy, shape), None, None


@pytest.mark.parametrize("factor", [1, 1.001])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_gradient_is_judged(factor):
    rows = torch.tensor([3, 1, 3, 0])
    found = check(
        lambda table: F.embedding(rows, table, sparse=True),
        lambda table: Rows.apply(table, rows, factor),
        [X],
        quick=True,
    )
    assert found.passes is (factor == 1), str(found)
    assert check(lambda t: F.embedding(rows, t, sparse=True), None, [X]).passes


def test_what_a_distribution_asks_of_its_arguments_decides_nothing():
    def fitted(x):
        spread = torch.cov(x.T) + 0.1 * torch.eye(3)  # symmetric but for rounding
        return torch.distributions.MultivariateNormal(x.mean(0), spread).log_prob(x)

    x = torch.randn(8, 3, generator=torch.manual_seed(0))
    assert check(fitted, None, [x], quick=True).passes


def clipped(ratio, advantage, low=0.8):
    """What proximal policy optimisation minimises; mostly both sides are equal."""
    plain = ratio.exp() * advantage
    return -torch.min(plain, ratio.exp().clamp(low, 1.2) * advantage).mean()


def test_two_sides_of_a_maximum_that_are_the_same_hide_nothing():
    g = torch.manual_seed(0)
    given = [0.05 * torch.randn(8, generator=g), torch.randn(8, generator=g)]
    assert check(clipped, None, given, quick=True).passes

    def wrong(ratio, advantage):
        return clipped(ratio + 0.01 * (ratio - ratio.detach()), advantage)

    assert check(clipped, wrong, given, quick=True).failures
