"""Options that name several things: repeated, or with commas."""

import click
import pytest

from gradwatch.harness.console import options
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.impls.catalogue import UnknownName


@pytest.mark.parametrize(
    "values", [("jvp", "hvp"), ("jvp,hvp",), ("jvp", "hvp,jvp"), ("jvp,hvp", "hvp")]
)
def test_names_that_are_repeated_or_have_commas_each_count_once(values):
    assert _orders_of(*values) == ("jvp", "hvp")


@pytest.mark.parametrize("values", [("jvp,",), ("jvp,hpv",), ("",)])
def test_what_is_not_a_name_is_refused(values):
    with pytest.raises(UnknownName, match="no order is called"):
        _orders_of(*values)


def _orders_of(*values):
    @click.command()
    @options.several("order", lambda: ORDERS, "Orders.")
    def command(orders):
        return orders

    given = [part for value in values for part in ("--order", value)]
    return command.invoke(command.make_context("command", given))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h", 3600), ("7", 7), ("1.5m", 90), ("1e-3", 0.001)],
)
def test_a_time_has_a_unit_or_is_in_seconds(text, seconds):
    assert _budget_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["soon", "0m", "-1", "nan", "m", "10 d", ""])
def test_what_is_no_time_above_zero_is_refused(text):
    with pytest.raises(click.BadParameter, match="is not a time such as"):
        _budget_of(text)


def _budget_of(text):
    @click.command()
    @options.seconds("--budget", 2.0, "A time.")
    def command(budget):
        return budget

    called = command.make_context("command", ["--budget", text])
    return command.invoke(called)
