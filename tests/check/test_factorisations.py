"""Losses that factorise a matrix: right backwards pass, planted mistakes do not."""

import math

import pytest

torch = pytest.importorskip("torch")

from gradwatch import check  # noqa: E402  # after importorskip
from gradwatch.harness.tracing import Untraceable  # noqa: E402  # likewise

BOTH = ["float64", "float32"]


def positive(x):
    return x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype)


def gaussian_process(x, y, length):
    """The negative log marginal likelihood, by Cholesky."""
    squares = ((x[:, None] - x) ** 2).sum(-1)
    noise = 0.1 * torch.eye(len(x), dtype=x.dtype)
    low = torch.linalg.cholesky(torch.exp(-squares / (1 + length**2)) + noise)
    alpha = torch.cholesky_solve(y[:, None], low)[:, 0]
    half = torch.log(torch.diagonal(low)).sum()
    return 0.5 * y @ alpha + half + 0.5 * len(x) * math.log(2 * math.pi)


def from_eigenvalues(x):
    w, v = torch.linalg.eigh(positive(x))
    return (v * w.sqrt()) @ v.mT


def shrunk(x):
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return u * torch.relu(s - 0.5) @ vh


def projected(x):
    q, _ = torch.linalg.qr(x)
    return q @ torch.tanh(q.mT @ x)


def solved(a, b):
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b)


LOSSES = {
    "gaussian process": (gaussian_process, [(6, 2), (6,), ()]),
    "log determinant": (
        lambda x: 2 * torch.linalg.cholesky(positive(x)).diagonal().log().sum(),
        [(4, 5)],
    ),
    "nuclear norm": (lambda x: torch.linalg.svdvals(x).sum(), [(4, 5)]),
    "spectral norm": (lambda x: torch.linalg.norm(x, 2), [(5, 3)]),
    "eigenvalues": (lambda x: torch.linalg.eigvalsh(x + x.mT), [(4, 4)]),
    "square root": (from_eigenvalues, [(4, 5)]),
    "shrinkage": (shrunk, [(4, 5)]),
    "projection": (projected, [(5, 3)]),
    "linear system": (solved, [(4, 4), (4, 2)]),
    "pseudoinverse": (torch.linalg.pinv, [(5, 3)]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_pytorch_s_gradients_of_losses_pass(name):
    function, shapes = LOSSES[name]
    report = check(function, shapes=shapes, dtypes=BOTH)
    assert report.passes, report


class Cholesky(torch.autograd.Function):
    """With the gradient of Murray, Differentiation of the Cholesky decomposition."""

    @staticmethod
    def forward(ctx, a, mistake):
        low = torch.linalg.cholesky(a)
        ctx.mistake = mistake
        ctx.save_for_backward(low)
        return low

    @staticmethod
    def backward(ctx, dy):
        (low,) = ctx.saved_tensors
        inner = (low.mT @ dy.tril()).tril()
        if ctx.mistake != "diagonal not halved":
            inner = inner - inner.diagonal(dim1=-2, dim2=-1).diag_embed() / 2
        if ctx.mistake == "other triangle":
            inner = inner.mT
        inverted = torch.linalg.inv(low)
        if ctx.mistake == "inverse not transposed":
            made = inverted @ inner @ inverted
        else:
            made = inverted.mT @ inner @ inverted
        made = (made + made.mT) / 2
        return -made if ctx.mistake == "sign" else made, None


CHOLESKY = ["", "diagonal not halved", "inverse not transposed", "sign"]


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("mistake", CHOLESKY)
def test_a_backward_of_cholesky(mistake):
    report = check(
        *(
            lambda x: torch.linalg.cholesky(positive(x)),
            lambda x: Cholesky.apply(positive(x), mistake),
        ),
        shapes=[(4, 5)],
        dtypes=BOTH,
        quick=bool(mistake),
    )
    assert report.passes == (not mistake), report
    assert {row.judgement.tensor for row in report.failures} <= {"dx"}


class Triangle(Cholesky):
    """Whose gradient is the lower triangle's, as if the upper one were not there."""

    @staticmethod
    def backward(ctx, dy):
        made, _ = Cholesky.backward(ctx, dy)
        return made.tril() + made.tril(-1), None


def test_one_triangle_is_no_gradient_unless_the_function_reads_a_symmetric_matrix():
    """The documented input is symmetric: what stands above belongs to it as well."""
    matrix = positive(torch.randn(4, 5, generator=torch.manual_seed(0)))
    pair = torch.linalg.cholesky, lambda a: Triangle.apply(a, "")
    assert not check(*pair, inputs=[matrix], quick=True).passes
    read = [lambda a, f=f: f((a + a.mT) / 2) for f in pair]
    assert check(*read, inputs=[matrix], quick=True).passes


class Given(torch.autograd.Function):
    """A loss of a matrix with any gradient."""

    @staticmethod
    def forward(ctx, x, loss, gradient):
        ctx.gradient = gradient
        ctx.save_for_backward(x)
        return loss(x)

    @staticmethod
    def backward(ctx, dy):
        return dy[..., None, None] * ctx.gradient(*ctx.saved_tensors), None, None


def vectors(x):
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    return u, vh


def nuclear(x):
    return torch.linalg.svdvals(x).sum(-1)


def log_of_determinant(x):
    return torch.linalg.slogdet(x).logabsdet


PAIRS = {
    "nuclear norm": (nuclear, lambda x: vectors(x)[0] @ vectors(x)[1], True),
    "its sign": (nuclear, lambda x: -vectors(x)[0] @ vectors(x)[1], False),
    "one vector too few": (
        *(nuclear, lambda x: vectors(x)[0][..., :-1] @ vectors(x)[1][..., :-1, :]),
        False,
    ),
    "determinant": (log_of_determinant, lambda x: torch.linalg.inv(x).mT, True),
    "not transposed": (log_of_determinant, torch.linalg.inv, False),
    "factor 2": (log_of_determinant, lambda x: 2 * torch.linalg.inv(x).mT, False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_that_was_worked_out_by_hand(name):
    loss, gradient, right = PAIRS[name]
    candidate = [loss, lambda x: Given.apply(x, loss, gradient)]
    report = check(*candidate, shapes=[(4, 4)], dtypes=BOTH, quick=not right)
    assert report.passes == right, report


def test_vectors_that_are_free_are_refused():
    full = torch.randn(4, 3, generator=torch.manual_seed(0))
    with pytest.raises(Untraceable, match="another algorithm may choose"):
        check(lambda x: torch.linalg.svd(x).U, inputs=[full])


def test_a_matrix_is_factorised_at_the_size_that_was_given_and_at_small_ones():
    report = check(nuclear, shapes=[(70, 5)], quick=True)
    assert report.passes
    report = check(lambda x: torch.logdet(positive(x)), shapes=[(5, 3)])
    assert not any("1025x" in row.trial or "257x" in row.trial for row in report.rows)


SIGNED = {
    "a vector": lambda x: torch.linalg.eigh(x + x.mT).eigenvectors[:, 0],
    "a product of two": lambda x: torch.linalg.eigh(x + x.mT).eigenvectors.prod(-1),
    "one side": lambda x: torch.linalg.svd(x).U.sum(),
}


@pytest.mark.parametrize("name", SIGNED)
def test_a_result_that_has_the_sign_of_a_vector_is_refused(name):
    with pytest.raises(Untraceable, match=r"signs are free.*return what no sign"):
        check(SIGNED[name], shapes=[(4, 4)], quick=True)


def test_a_vector_whose_sign_is_fixed_is_judged():
    def fixed(x):
        v = torch.linalg.eigh(x + x.mT).eigenvectors
        return v * torch.sign(v[:1])

    assert check(fixed, shapes=[(4, 4)], dtypes=BOTH, quick=True).passes


def exponential(x):
    return torch.matrix_exp(0.3 * x)


@pytest.mark.parametrize("error", [0, 1e-5])
def test_an_exponential_is_right_to_roundings_of_its_largest_element(error):
    ties = {"shapes": [(4, 4)], "only": "ties", "seed": 7}
    report = check(exponential, lambda x: exponential(x) + error, **ties)
    assert report.passes == (not error), report


@pytest.mark.parametrize("dtype", BOTH)
def test_a_pseudoinverse_loses_the_condition_s_digits_and_no_more(dtype):
    """Of columns of several decades PyTorch's was accused."""
    how = {"shapes": [(5, 3)], "dtypes": [dtype], "seed": 3}
    assert check(torch.linalg.pinv, only=["mixed"], **how).passes

    def larger(x):
        return torch.linalg.pinv(x + 1e-3 * (x - x.detach()))

    assert not check(torch.linalg.pinv, larger, quick=True, **how).passes
