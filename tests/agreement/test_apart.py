"""No page changes the verdict on another one, whatever it does where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwatch.harness.agreement.remote import judge, judged
from gradwatch.harness.agreement.suite import Asked
from gradwatch.harness.workers.child import Child
from tests.pages import CUBE

#: What a page may do at its import, in its formula and in its backward.
EVIL = {
    "judge": "import sys; m = sys.modules.get('gradwatch.harness.judging.verdict');"
    " m and setattr(m, 'judge_tensors', lambda *a, **k: ())",
    "accepted": "import sys; m = sys.modules.get('gradwatch.harness.agreement.suite');"
    " m and setattr(m, 'judge_outcome', lambda *a, **k: ())",
    "engine": "import gradwatch.impls.graph as g; g.PRIMITIVES.clear()",
    "numpy": "import numpy as np; np.asarray = lambda *a, **k: 1 / 0",
    "framework": "import sys; t = sys.modules.get('torch');"
    " t and setattr(t, 'Tensor', None)",
    "builtins": "import builtins; builtins.len = lambda x: 0",
    "modules": "import sys; [sys.modules.pop(n) for n in list(sys.modules)]",
    "fork": "import os; os.fork()",
    "descriptors": "import os; [os.write(n, b'odd') for n in range(3, 64)"
    " if os.path.exists(f'/proc/self/fd/{n}') and not os.get_inheritable(n) or 0]",
}
PLACES = {
    "import": ("import numpy as np\n", "import numpy as np\n{}\n"),
    "formula": ("def formula(xp, x):\n", "def formula(xp, x):\n    {}\n"),
    "backward": (
        "    def backward(ctx, dy):\n",
        "    def backward(ctx, dy):\n        {}\n",
    ),
}


def verdicts(*pages: Path) -> set[tuple[str, str, str, str]]:
    """Of each op, backend and tensor the verdict."""
    asked = Asked(
        ops=[str(page) for page in pages],
        backends=["numpy_manual", "torch_custom"],
        regimes=["normal"],
        dtypes=["float32"],
        timeout=20.0,
    )
    with Child(judge) as child:
        records = judged(asked, child).records
    return {(r.op, r.backend, r.tensor, r.verdict) for r in records}


def written(folder: Path, name: str, old: str, new: str) -> Path:
    page = folder / f"{name}.py"
    page.write_text(CUBE.replace('Op("cube"', f'Op("{name}"').replace(old, new))
    return page


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("red")
    return written(folder, "red", "3 * x", "2.9 * x")


@pytest.fixture(scope="module")
def alone(red: Path) -> set[tuple[str, str, str, str]]:
    found = verdicts(red)
    assert {v for _, _, tensor, v in found if tensor == "dx"} == {"disagree"}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", EVIL)
def test_a_page_changes_no_verdict_on_another(
    tmp_path: Path,
    red: Path,
    alone: set[tuple[str, str, str, str]],
    what: str,
    place: str,
) -> None:
    before, after = PLACES[place]
    evil = written(tmp_path, "evil", before, after.format(EVIL[what]))
    found = verdicts(evil, red)
    assert {one for one in found if one[0] == "red"} == alone
    assert any(op == "evil" for op, *_ in found)


def test_a_page_cannot_call_its_op_as_another_that_is_judged(
    tmp_path: Path, red: Path, alone: set[tuple[str, str, str, str]]
) -> None:
    evil = written(tmp_path, "evil", 'Op("evil"', 'Op("red"')
    evil.write_text(evil.read_text().replace('Op("evil"', 'Op("red"'))
    found = verdicts(evil, red)
    assert {one for one in found if one[0] == "red"} == alone
    assert ("evil", "reference", "all", "error") in found
