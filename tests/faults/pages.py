"""Misbehaving op pages, judged beside a right one: each costs itself alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import psutil

from gradwatch.harness.agreement.suite import Agreement, Asked, judge, judged
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.workers.process import Child
from tests.faults.campaign import Fault
from tests.faults.processes import ended
from tests.pages import CUBE

BACKENDS = ("numpy_manual",)
RIGHT = "square"
TIMEOUT = 3.0  # seconds for a case: many times what one of three numbers needs
AT_ONCE = 5  # pages that are judged in one run, with the right one

#: Places of a page, and what is written before the code there.
PLACES = {
    "its import": ("import numpy as np", "{}\nimport numpy as np"),
    "its formula": ("def formula(xp, x):\n", "def formula(xp, x):\n    {}\n"),
    "its forward": ("def manual(x):\n", "def manual(x):\n    {}\n"),
    "its backward": (
        "return x**3, lambda dy: (3 * x**2 * dy,)",
        "def backward(dy):\n        {}\n        return (3 * x**2 * dy,)\n"
        "    return x**3, backward",
    ),
}

#: What no page may do and still be right.
WRONG = (
    "raise SystemExit(0)",
    "raise SystemExit('bye')",
    "import sys; sys.exit(0)",
    "import os; os._exit(0)",
    "import os; os._exit(7)",
    "import os; os.kill(os.getpid(), 9)",
    "import os; os.kill(os.getpid(), 11)",
    "import os; os.kill(os.getpid(), 15)",
    "import os; os.abort()",
    "import ctypes; ctypes.string_at(0)",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise BaseException('a\\x00b')",
    "raise StopIteration",
    "raise MemoryError",
    "raise RecursionError",
    "raise OSError(28, 'No space left on device', 'here')",
    "raise EOFError",
    "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "raise ValueError('[/red]\\n\\u2028' * 1000)",
    "1 / 0",
    "none_such",
    "while True: pass",
    "import time; time.sleep(1e6)",
    "bytearray(1 << 50)",
    "import os; [os.close(n) for n in range(3, 64)]; os._exit(0)",
    "import os, signal; signal.pause()",
    "import sys; sys.modules.clear(); raise ImportError",
)

#: What a page may do without being wrong.
ODD = (
    "print('garbage' * 1000)",
    "import os; os.write(1, bytes(range(256)))",
    "import os; os.write(2, bytes(range(256)))",
    "import os; os.chdir('/')",
    "import sys; sys.stdout = None",
    "import sys; sys.argv = []",
    "import gc; gc.collect()",
    "import warnings; warnings.warn('mind this')",
    "import threading; threading.Thread(target=print).start()",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
)

Judge = Callable[[Sequence[str]], Agreement]


def agreed(pages: Sequence[str]) -> Agreement:
    """The verdicts on some pages, as `gradwatch agree --ops` gives them."""
    asked = Asked(
        ops=(*pages, RIGHT),
        backends=BACKENDS,
        regimes=("normal",),
        dtypes=("float64",),
        timeout=TIMEOUT,
    )
    with Child(judge) as child:
        return judged(asked, child)


def inject(
    count: int, random: Random, folder: Path, judging: Judge = agreed
) -> Iterator[Fault]:
    """Judge random pages, some in a run; each is a fault."""
    whole = len(_right(judging([]))) or len(_right(judging([])))  # it was too busy
    left = count
    for number in range(count):
        pages, whats, wrong = [], [], []
        for i in range(min(AT_ONCE, left)):
            place, what = random.choice(list(PLACES)), random.choice((*WRONG, *ODD))
            pages.append(_planted(folder / f"cube_{number}_{i}.py", place, what))
            whats.append(f"{what!r} in {place}")
            wrong.append(what in WRONG)
        before = {*psutil.Process().children(recursive=True)}
        agreement = judging(pages)
        left -= len(pages)
        shared = _of_the_run(agreement, before, whole)
        for page, what, bad in zip(pages, whats, wrong, strict=True):
            yield Fault(what, shared | _of_the_page(agreement, Path(page).stem, bad))
            shared = {}  # counted once
        if not left:
            return


def _planted(page: Path, place: str, statement: str) -> str:
    before, after = PLACES[place]
    text = CUBE.replace(before, after.format(statement))
    page.write_text(text.replace('Op("cube"', f'Op("{page.stem}"'))
    return str(page)


def _right(agreement: Agreement) -> list[str]:
    """The tensors of the right page that are judged to be right."""
    return [
        f"{r.case} {r.tensor}"
        for r in agreement.records
        if r.op == RIGHT and r.verdict == "agree"
    ]


def _of_the_run(
    agreement: Agreement, before: set[psutil.Process], whole: int
) -> dict[str, str]:
    found, begun = len(_right(agreement)), time.monotonic()
    lost = {}
    if found != whole:
        lost["result lost"] = f"{found} of {whole} verdicts on {RIGHT}"
    new = {*psutil.Process().children(recursive=True)} - before
    if alive := ended(new, begun):
        lost["process left"] = alive
    return lost


def _of_the_page(agreement: Agreement, name: str, bad: bool) -> dict[str, str]:
    verdicts = {r.verdict for r in agreement.records if r.op == name}
    if not verdicts:
        return {"result lost": "it has no record"}
    if bad and (verdicts <= {*PASSING} or not agreement.exit_code):
        return {"exit 0 without judging": f"its verdicts are {verdicts}"}
    return {}
