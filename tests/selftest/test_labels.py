"""A diagnosis names a planted mistake by its kind, and no other kind passes for it."""

from __future__ import annotations

import itertools

import pytest

from gradwatch.harness.selftest.mutants import ANYWHERE, read_mistakes
from gradwatch.harness.selftest.scoring import LABELS, kind_of, named

SENTENCES = {
    "dx is transposed": "b is read in the other order",
    "0 stands for 1e-05 in `sum(x) / 8 + 1e-05`": "eps is omitted",
    "dx is clipped to [-1, 1]": "clipped to [-1, 1]",
    "what is saved of the inputs is rounded to float16": "float16 input saved",
    "dbias is divided by 6, as in a mean for a sum": "dbias is a mean",
    "`dx` is shifted by one": "rows are off by one",
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_names_a_mistake_of_its_kind(sentence: str) -> None:
    assert named(SENTENCES[sentence], [sentence])


@pytest.mark.parametrize(
    ("sentence", "other"),
    [
        ("dx is transposed", "float16 input saved"),
        ("dx is shifted by one", "clipped to [-1, 1]"),
        ("what is saved of the inputs is rounded to float32", "float16 input saved"),
        ("24 of 24 elements of dx are wrong", "the mean's term is lost"),
        ("24 of 24 elements of dx are wrong", "the first gradient has the wrong sign"),
    ],
)
def test_a_sentence_names_no_mistake_of_another_kind(sentence: str, other: str) -> None:
    assert not named(other, [sentence])


def test_each_wrong_tensor_needs_its_own_sentence() -> None:
    said = ["dx is clipped to [-1, 1]", "12 of 12 elements of db are wrong"]
    assert named("clipped to [-1, 1]", said[:1])
    assert not named("clipped to [-1, 1]", said)


def test_what_has_no_kind_is_never_named() -> None:
    assert kind_of("windows do not overlap") == "other"
    assert not named("windows do not overlap", ["dy is clipped at 0"])


def test_most_planted_mistakes_have_a_kind_and_each_kind_has_a_mistake() -> None:
    own = (name for rows in read_mistakes().values() for name, *_ in rows)
    kinds = [*map(kind_of, itertools.chain(own, ANYWHERE))]
    assert {*LABELS} <= {*kinds}
    assert kinds.count("other") < 0.2 * len(kinds)
