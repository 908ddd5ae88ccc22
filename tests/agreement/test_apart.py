"""No page changes the verdict on another one, whatever it does where it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from gradwatch.harness.agreement.suite import Asked, judge, judged
from gradwatch.harness.workers.process import Child
from tests.frameworks import usable
from tests.pages import CUBE

#: What a page may do at its import, in its formula and in its backward.
EVIL = {
    "judge": "import sys; m = sys.modules.get('gradwatch.harness.judging.verdict');"
    " m and setattr(m, 'judge_tensors', lambda *a, **k: ())",
    "accepted": "import sys; m = sys.modules.get('gradwatch.harness.workers.pool');"
    " m and setattr(m.Outcome, 'judged', lambda *a, **k: ())",
    "engine": "import gradwatch.impls.graph as g; g.PRIMITIVES.clear()",
    "numpy": "import numpy as np; np.asarray = lambda *a, **k: 1 / 0",
    "framework": "import sys; t = sys.modules.get('torch');"
    " t and setattr(t, 'Tensor', None)",
    "builtins": "import builtins; builtins.len = lambda x: 0",
    "modules": "import sys; [sys.modules.pop(n) for n in list(sys.modules)]",
    "fork": "import os; os.fork()",
    "files": "import pathlib as p, gradwatch.impls.contract as c;"
    " [f.open('ab').close() for f in p.Path(c.__file__).parents[1].rglob('*.py')]",
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


def verdicts(
    *pages: Path, backends: Sequence[str] = ("numpy_manual", "torch_custom")
) -> set[tuple[str, str, str, str]]:
    """Of each op, backend and tensor the verdict."""
    asked = Asked(
        ops=[str(page) for page in pages],
        backends=backends,
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
@pytest.mark.parametrize(
    ("what", "place"),
    [
        (what, place)
        for what in EVIL
        for place in PLACES
        if what != "descriptors" or place == "formula"  # hangs until the limit of 20 s
    ],
)
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


OURS = "[m for m in list(sys.modules.values()) if 'gradwatch' in m.__name__]"
#: What pages do in the campaign below.
STATEMENTS = (
    *EVIL.values(),
    f"import sys; [setattr(m, n, lambda *a, **k: None) for m in {OURS}"
    " for n in list(vars(m)) if n.startswith('judge')]",
    f"import sys; [vars(m).clear() for m in {OURS} if 'judging' in m.__name__]",
    "import gc; [o.clear() for o in gc.get_objects() if type(o) is dict and 'op' in o]",
    "import gradwatch.impls.contract as c; c.Op.implement = lambda *a: lambda f: f",
    "import numpy as np; np.exp = np.multiply = np.abs = lambda *a, **k: np.zeros(4)",
    "import os, tempfile; [open(e, 'wb').close() for e in"
    " os.scandir(tempfile.gettempdir()) if e.is_file() and 'gradwatch-' in e.name]",
    "import os; os.environ.clear(); os.fork()",
    "import atexit, os; atexit.register(os._exit, 0)",
    "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]",
    "import threading; threading.Thread(target=lambda: [0 for _ in iter(int, 1)],"
    " daemon=True).start()",
)
#: Of 20 seeds none changed a verdict; each costs some ten seconds.
TRIALS = 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(TRIALS))
def test_no_verdict_changes_beside_a_page_drawn_at_random(
    tmp_path: Path, red: Path, alone: set[tuple[str, str, str, str]], seed: int
) -> None:
    """It does two things at two places."""
    draw, story = Random(seed), []
    evil = written(tmp_path, "evil", "", "")
    for place in draw.sample(list(PLACES), 2):
        before, after = PLACES[place]
        what = draw.choice(STATEMENTS)
        story.append((place, what))
        evil.write_text(evil.read_text().replace(before, after.format(what)))
    pages = [evil, red] if draw.random() < 0.7 else [red, evil]
    assert {one for one in verdicts(*pages) if one[0] == "red"} == alone, story


#: The start of a page that says in which process of JAX it is read.
SAYS = """import os, sys
if "jax" in sys.modules:
    with open({file!r}, "a") as said:
        said.write(f"{{os.getpid()}} ")
{statement}
import numpy as np
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "workers"),
    [("", 1), ("import time; time.monotonic = lambda: 0.0", 2)],
)
def test_a_worker_that_cannot_be_forked_is_replaced_after_a_page_that_changed_it(
    tmp_path: Path, statement: str, workers: int
) -> None:
    usable("jax")
    file = tmp_path / "processes"
    says = SAYS.format(file=str(file), statement=statement)
    first = written(tmp_path, "first", "import numpy as np\n", says)
    says = SAYS.format(file=str(file), statement="")
    right = written(tmp_path, "second", "import numpy as np\n", says)
    found = verdicts(first, right, backends=["jax_formula"])
    assert len({*file.read_text().split()}) == workers
    assert {v for op, _, _, v in found if op == "second"} == {"agree"}
