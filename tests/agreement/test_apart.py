"""No page changes the verdict on another one, whatever it does where it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
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


#: An op's: the backend, the tensor and the verdict.
Verdicts = set[tuple[str, str, str]]
RED = ("3 * x", "2.9 * x")


def verdicts(
    *pages: Path, backends: Sequence[str] = ("numpy_manual", "torch_custom")
) -> dict[str, Verdicts]:
    """Of each op the verdict on each backend's tensors."""
    asked = Asked(
        ops=[str(page) for page in pages],
        backends=backends,
        regimes=["normal"],
        dtypes=["float32"],
        timeout=20.0,
    )
    found = defaultdict[str, Verdicts](set)
    with Child(judge) as child:
        for r in judged(asked, child).records:
            found[r.op].add((r.backend, r.tensor, r.verdict))
    return found


def written(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    page = folder / f"{name}.py"
    page.write_text(CUBE.replace('Op("cube"', f'Op("{name}"').replace(old, new))
    return page


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    found = verdicts(written(tmp_path_factory.mktemp("red"), "red", *RED))["red"]
    assert {v for _, tensor, v in found if tensor == "dx"} == {"disagree"}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_pages_change_no_verdict_on_another(
    tmp_path: Path, alone: Verdicts, place: str
) -> None:
    """The other one is judged after each of them."""
    before, after = PLACES[place]
    pages = dict[str, list[Path]]()
    for what, statement in EVIL.items():
        if what != "descriptors" or place == "formula":  # hangs until the limit
            evil = written(tmp_path, f"evil_{what}", before, after.format(statement))
            pages[what] = [evil, written(tmp_path, f"red_{what}", *RED)]
    found = verdicts(*chain(*pages.values()))
    for what in pages:
        assert found[f"red_{what}"] == alone, what
        assert found[f"evil_{what}"], what


def test_a_page_cannot_call_its_op_as_another_that_is_judged(
    tmp_path: Path, alone: Verdicts
) -> None:
    red, evil = written(tmp_path, "red", *RED), written(tmp_path, "evil")
    evil.write_text(evil.read_text().replace('Op("evil"', 'Op("red"'))
    found = verdicts(evil, red)
    assert found["red"] == alone
    assert ("reference", "all", "error") in found["evil"]


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


@pytest.mark.slow
def test_no_verdict_changes_beside_pages_drawn_at_random(
    tmp_path: Path, alone: Verdicts
) -> None:
    """Each does two things at two places; of 20 seeds none changed a verdict."""
    draw, stories, pages = Random(0), list[list[tuple[str, str]]](), list[Path]()
    for n in range(5):
        story = [(p, draw.choice(STATEMENTS)) for p in draw.sample([*PLACES], 2)]
        evil, red = written(tmp_path, f"evil{n}"), written(tmp_path, f"red{n}", *RED)
        for place, what in story:
            before, after = PLACES[place]
            evil.write_text(evil.read_text().replace(before, after.format(what)))
        stories.append(story)
        pages += [evil, red] if draw.random() < 0.7 else [red, evil]
    found = verdicts(*pages)
    for n, story in enumerate(stories):
        assert found[f"red{n}"] == alone, story


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
    assert {v for _, _, v in found["second"]} == {"agree"}
