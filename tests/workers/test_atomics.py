"""On a GPU a kernel may add in another order each time: each result has to be right.

The GPU is played (tests/cuda_stand_in.py); the order of a sum is played by a factor.
"""

from dataclasses import replace

import pytest

from gradwatch.harness.judging.question import Question
from gradwatch.harness.workers.pool import Outcome
from gradwatch.impls.catalogue import load_op
from tests.asked import answer
from tests.square import page, task

#: One more unit in the last place of float64 at each call of the backward.
ROUNDED = "Square.n = getattr(Square, 'n', -1) + 1; dy = dy * (1 + Square.n * 2**-52)"
#: Likewise, but the first and the third call are equal, which are two fresh runs.
CHANCE = (
    "Square.n = getattr(Square, 'n', -1) + 1; dy = dy * (1 + Square.n % 2 * 2**-52)"
)
WRITES_SAVED = "dx = 2 * saved * dy; saved.data.mul_(1 + 2**-40); return dx"
RACE = (
    "Square.n = getattr(Square, 'n', -1) + 1; dy = dy * (1 + (Square.n > 1) * 2**-40)"
)


@pytest.fixture
def gpu():
    pytest.importorskip("torch")
    from gradwatch.impls.catalogue import load_backend
    from tests.cuda_stand_in import Device, installed

    load_backend("torch_custom")
    with installed(Device()):
        yield


def wrong(path, device, **options):
    """The messages of what does not pass."""
    asked = task(path, "torch_custom", options=options, device=device)
    outcome = Outcome.of(asked, answer({"request": "evaluate", **asked.payload()}), "1")
    assert outcome.kind == "result"
    right = Question.of(replace(asked.trial.problem, op=load_op(path)))
    judged = outcome.judged(right)
    return [f"{j.tensor} {j.verdict} {j.message}" for j in judged if not j.passes]


@pytest.mark.parametrize("planted", [ROUNDED, CHANCE], ids=["always", "by chance"])
@pytest.mark.parametrize("stress", [False, True])
def test_another_order_of_a_sum_is_no_mistake(gpu, tmp_path, planted, stress):
    assert wrong(page(tmp_path, backward=planted), "cuda", stress=stress) == []


@pytest.mark.parametrize(
    ("planted", "how"),
    [(WRITES_SAVED, "dx disagree second backward: dx["), (RACE, "second run: dx[")],
    ids=["a saved tensor is overwritten", "a race"],
)
def test_a_result_that_is_wrong_the_second_time_is_one(gpu, tmp_path, planted, how):
    first, *_ = wrong(page(tmp_path, backward=planted), "cuda")
    assert how in first


def test_where_no_order_can_change_the_bits_have_to_be_the_same(tmp_path):
    """On the CPU a worker has one thread."""
    pytest.importorskip("torch")
    assert wrong(page(tmp_path, backward=CHANCE), "cpu") == [
        "saved malformed a saved tensor was overwritten: the second backward differs"
    ]
