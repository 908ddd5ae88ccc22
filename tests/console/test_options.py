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
    check = options.checked("order", lambda: ORDERS)
    assert check(None, None, values) == ("jvp", "hvp")


@pytest.mark.parametrize("values", [("jvp,",), ("jvp,hpv",), ("",)])
def test_what_is_not_a_name_is_refused(values):
    with pytest.raises(UnknownName, match="no order is called"):
        options.checked("order", lambda: ORDERS)(None, None, values)


@pytest.mark.parametrize("name", ["cube", "my_op"])
def test_the_op_of_a_page_is_known_by_its_name_and_its_file_s(tmp_path, name):
    page = tmp_path / "my_op.py"
    page.write_text('op = Op(\n    "cube", inputs="x")\nraise SystemExit\n')
    seen = {}

    @click.command()
    @options.op
    @options.pages
    def command(ops, pages):
        seen["sources"] = options.sources(ops, pages)

    call = ["--op", name, "--op", "square", "--ops", str(page)]
    command.main(call, standalone_mode=False)
    assert seen["sources"] == ("square", str(page)), "and it is loaded once"
    with pytest.raises(UnknownName, match="did you mean 'cube'"):
        command.main(["--op", "cub", "--ops", str(page)], standalone_mode=False)
