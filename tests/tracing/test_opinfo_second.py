"""OpInfo's second orders: right ones pass, a spoilt one does not."""

import pytest

torch = pytest.importorskip("torch")

from scripts.studies import opinfo_second  # noqa: E402  # after importorskip
from scripts.studies.opinfo import entries  # noqa: E402  # likewise
from scripts.studies.opinfo_second import one_entry, summary  # noqa: E402  # likewise


def entry(name):
    return next(e for e in entries(torch.float64) if e.formatted_name == name)


def test_both_orders_of_an_entry_are_judged():
    record = one_entry(entry("tanh"))
    assert {j["order"] for j in record["judged"]} == {"jvp", "hvp"}
    assert {j["verdict"] for j in record["judged"]} == {"agree"}
    assert summary([record])["wrong"] == []


def test_a_second_derivative_that_is_off_is_in_the_summary(monkeypatch):
    right = opinfo_second.differentiated

    def spoilt(*arguments):
        return [None if t is None else t * (1 + 1e-9) for t in right(*arguments)]

    monkeypatch.setattr(opinfo_second, "differentiated", spoilt)
    assert summary([one_entry(entry("tanh"))])["wrong"] == ["tanh"]


def test_what_casts_is_judged_in_the_narrower_type():
    assert {j["verdict"] for j in one_entry(entry("half"))["judged"]} == {"agree"}


def test_what_cannot_be_judged_says_why():
    record = one_entry(entry("nn_functional_linear_cross_entropy_chunked_none"))
    assert record["not"]
    assert {no["op"] for no in record["not"]} == {"hvp"}
    assert all(no["why"].startswith("div(): functions") for no in record["not"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("grid_sampler_2d", id="the other side of a choice has no element"),
        pytest.param("as_strided_partial_views", id="a view of a larger tensor"),
        pytest.param("fft_irfft", id="complex numbers"),
    ],
)
def test_what_was_no_fault_of_pytorch_agrees(name):
    record = one_entry(entry(name))
    assert {j["verdict"] for j in record["judged"]} == {"agree"}
    assert record["not"] == []


def test_an_accusation_has_its_cause_and_pytorch_s_own_verdict_beside_it():
    record = one_entry(entry("copysign"))
    assert summary([record])["wrong"] == ["copysign"]
    assert summary([record])["without a cause"] == []
    assert record["checks"] == {"hvp fast": "", "hvp slow": ""}
    rows = opinfo_second.wrong_rows([record])
    assert "[copysign](../results/pytorch/second/copysign.py)" in rows
