"""ctc_loss against all ways to write a word, and its gradient behind log_softmax."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812  # after importorskip; usual

from gradwatch import check  # noqa: E402  # likewise
from gradwatch.harness.tracing.traced import trace  # noqa: E402  # likewise

STEPS = [4, 3]
WORDS = [[1, 2, 2], [2]]
TARGETS = torch.tensor([[1, 2, 2], [2, 0, 0]])
LENGTHS = torch.tensor([3, 1])


def loss(x, **how):
    return F.ctc_loss(x.log_softmax(-1), TARGETS, torch.tensor(STEPS), LENGTHS, **how)


def by_lists(x):
    return F.ctc_loss(x.log_softmax(-1), TARGETS, tuple(STEPS), LENGTHS.tolist())


def written(path, blank=0):
    """What a path says: equal neighbours are one, then blanks go."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


def test_it_is_the_probability_of_all_paths():
    x = torch.randn(4, 2, 3, generator=torch.manual_seed(0), dtype=torch.float64)
    made = trace(lambda x: loss(x, reduction="none"), [x]).graph().outputs["y"].value
    p = x.softmax(-1).numpy()
    for i, (steps, word) in enumerate(zip(STEPS, WORDS, strict=True)):
        paths = itertools.product(range(3), repeat=steps)
        every = [
            [p[t, i, c] for t, c in enumerate(q)] for q in paths if written(q) == word
        ]
        assert made[i] == pytest.approx(-np.log(sum(map(np.prod, every))), rel=1e-13)


def test_what_cannot_be_written_is_infinite_or_zero():
    word = (torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([2]))
    for flag, expected in ((False, np.inf), (True, 0.0)):
        made = trace(
            lambda x, z: F.ctc_loss(x, *word, zero_infinity=z),
            [torch.zeros(2, 1, 3), flag],
        )
        assert made.graph().outputs["y"].value == expected


def test_behind_log_softmax_pytorch_s_gradient_is_right_and_half_of_it_is_not():
    regimes = {"shapes": [(4, 2, 3)], "dtypes": ["float64", "float32"], "quick": True}
    assert check(loss, **regimes).passes

    def half(x):
        return loss(x / 2 + x.detach() / 2)

    report = check(loss, half, **regimes)
    assert {row.judgement.tensor for row in report.failures} == {"dx"}


@pytest.mark.parametrize("seed", [1, 5])
def test_variables_as_large_as_the_loss_may_lose_as_many_digits(seed):
    """PyTorch was accused; a part of the gradient that is left out still is."""
    how = {"shapes": [(4, 2, 3)], "dtypes": ["float64"], "seed": seed}
    assert check(loss, only=["mixed"], **how).passes

    def larger(x):
        return loss(x + 1e-6 * (x - x.detach()))

    assert not check(loss, larger, only=["mixed"], **how).passes


def test_lengths_may_be_lists_of_which_pytorch_makes_a_tensor_unseen():
    """The tensor was taken for ones; half a gradient is still wrong."""
    x = torch.randn(4, 2, 3, generator=torch.manual_seed(0), dtype=torch.float64)
    made = trace(by_lists, [x]).graph().outputs["y"].value
    assert made == pytest.approx(loss(x).item(), rel=1e-13)
    regimes = {"shapes": [(4, 2, 3)], "dtypes": ["float32"], "quick": True}
    assert check(by_lists, **regimes).passes

    def half(x):
        return by_lists(x / 2 + x.detach() / 2)

    assert not check(by_lists, half, **regimes).passes
