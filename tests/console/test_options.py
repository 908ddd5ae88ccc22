"""Options that name several things: repeated, or with commas."""

import pytest

from gradwatch.harness.console import options
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.impls.catalogue import UnknownName


@pytest.mark.parametrize(
    "values", [("jvp", "hvp"), ("jvp,hvp",), ("jvp", "hvp,jvp"), ("jvp,hvp", "hvp")]
)
def test_names_that_are_repeated_or_have_commas_each_count_once(values):
    check = options.checked("order", lambda: ORDERS)
    assert check(None, None, values) == ("jvp", "hvp")


@pytest.mark.parametrize("values", [("jvp,",), ("jvp,hpv",), ("",)])
def test_what_is_not_a_name_is_refused(values):
    with pytest.raises(UnknownName, match="no order is called"):
        options.checked("order", lambda: ORDERS)(None, None, values)
