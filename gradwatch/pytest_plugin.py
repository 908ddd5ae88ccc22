"""The pytest plugin: a fixture `gradwatch` that judges, with nothing to configure.

    def test_silu(gradwatch):
        gradwatch.check(torch.nn.functional.silu, FastSilu.apply, shapes=[(64, 1000)])

A failure is at most twelve lines: the mistakes, and last the file of a script that
reproduces it. A vacuous comparison does not pass. `--gradwatch-json F` writes every
judgement into one document, also from all the workers of pytest-xdist.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gradwatch as public

if TYPE_CHECKING:
    from gradwatch.harness.judging.judgement import Judgement
    from gradwatch.harness.timing.samples import Comparison

_PROPERTY = "gradwatch"  # under which a test's judgements travel with its report
_SHOWN = 4  # tensors of a failure, each in two lines: the verdict, and the diagnosis
_LONG = 400  # characters of a line of a failure
_SMALL = 64  # elements of all inputs that a script may hold and still be read
_SLOWER = 1.1  # by default: asv's own threshold of a regression in asv.conf.json


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --gradwatch-json."""
    group = parser.getgroup("gradwatch")
    text = "Write every judgement of the fixture `gradwatch` into one JSON document."
    group.addoption("--gradwatch-json", metavar="F", help=text)


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Collect judgements, in the process that sees all reports."""
    from gradwatch.harness.project.paths import PROJECT, ROOT

    if PROJECT.table:  # tests import its modules as our commands do
        sys.path.extend(map(str, PROJECT.paths(ROOT)))
    _narrow_tables(config)
    target = config.getoption("--gradwatch-json")
    if target and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(target), "gradwatch-collector")


def _narrow_tables(config: pytest.Config) -> None:
    """Let a project's tables of pytest-benchmark have the columns that matter."""
    if not hasattr(config.option, "benchmark_columns"):
        return  # without pytest-benchmark nothing of ours is imported here
    from gradwatch.harness.project.paths import PROJECT

    chosen = {"columns": ["median", "iqr", "rounds"], "sort": "fullname"}
    typed = [*config.invocation_params.args, *config.getini("addopts")]
    given = " ".join(map(str, typed))
    for name, value in chosen.items():
        if not PROJECT.problem and f"--benchmark-{name}" not in given:
            setattr(config.option, f"benchmark_{name}", value)


@pytest.fixture
def gradwatch(request: pytest.FixtureRequest) -> Gradwatch:
    """`check`, `judge` and `compare`, which fail the test with the whole story."""
    return Gradwatch(request.node.user_properties.append, request.node.nodeid)


class Gradwatch:
    """The fixture's value; `keep` stores a property of the test named `test`."""

    def __init__(
        self, keep: Callable[[tuple[str, object]], None], test: str = ""
    ) -> None:
        self._keep, self._test = keep, test

    def check(
        self, reference: Any, candidate: Any = None, *given: Any, **options: Any
    ) -> Any:
        """`gradwatch.check`, which fails the test unless the report passes."""
        __tracebackhide__ = True
        report = public.check(reference, candidate, *given, **options)
        self._record(report)
        _keep_check(self._test, report.kept())
        if not report.passes:
            wrong = [r.judgement for r in report.failures] or list(report)
            told = _failure(self._test, wrong, report.repro(), report.headline)
            pytest.fail(told, pytrace=False)
        return report

    def judge(
        self,
        op: Any,
        inputs: Sequence[Any],
        dy: Any,
        gradients: Sequence[Any],
        *,
        allow_vacuous: bool = False,
        **options: Any,
    ) -> tuple[Judgement, ...]:
        """`gradwatch.judge`, which fails the test if any gradient is wrong.

        Tensors are detached and brought to the CPU. One of which nothing can be said
        fails too, unless `allow_vacuous`.
        """
        __tracebackhide__ = True
        inputs, gradients = [*map(_array, inputs)], [*map(_array, gradients)]
        if options.get("outputs") is not None:
            options["outputs"] = [*map(_array, options["outputs"])]
        dy = [*map(_array, dy)] if isinstance(dy, (tuple, list)) else _array(dy)
        judgements = public.judge(op, inputs, dy, gradients, **options)
        self._record(judgements)
        silent = () if allow_vacuous else ("vacuous",)
        if any(not j.passes or j.verdict in silent for j in judgements):
            script = _script(op, inputs, dy, gradients, options)
            ranked = sorted(judgements, key=lambda j: j.passes)
            wrong = [j for j in ranked if not j.passes or j.verdict in silent]
            pytest.fail(_failure(self._test, wrong, script), pytrace=False)
        return judgements

    def compare(
        self,
        before: Callable[[], object],
        after: Callable[[], object],
        *,
        slower: float = _SLOWER,
        budget: float = 1.0,
    ) -> Comparison:
        """Time two calls in turn; fail the test where `after` is slower.

        Args:
            before, after: The functions to time, each called without arguments.
            slower: The ratio of their times that is still accepted. The test fails if
                the whole 95 % interval lies above it, or nothing could be said.
            budget: Seconds for both.
        """
        __tracebackhide__ = True
        from gradwatch.harness.timing.samples import interleave, paired
        from gradwatch.harness.timing.timers import HostTimer

        timer = HostTimer()
        runs = {"before": partial(timer, before), "after": partial(timer, after)}
        found = paired(*interleave(runs, budget=budget).values())
        ratio = found.ratio
        told = f"{ratio.value:.2f} times the time ({ratio.low:.2f} to {ratio.high:.2f})"
        if not ratio.resolved:
            pytest.fail(f"nothing could be said: {found.short or told}", pytrace=False)
        if ratio.low > slower:
            pytest.fail(f"{told}; up to {slower:g} is accepted", pytrace=False)
        return found

    def _record(self, judgements: Iterable[Judgement]) -> None:
        self._keep((_PROPERTY, [_builtin(asdict(j)) for j in judgements]))


def _builtin(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and strings alone: pytest-xdist carries nothing else."""
    kinds = {float: float, int: int, bool: bool, tuple: list}
    found = {}
    for name, value in fields.items():
        kind = next((k for k in kinds if isinstance(value, k)), None)
        found[name] = kinds[kind](value) if kind else str(value)
    return found


# The text of a failure ------------------------------------------------------------


def _failure(
    test: str, wrong: Sequence[Judgement], script: str, headline: str = ""
) -> str:
    """At most twelve lines; the last one is the script's file, where there is one."""
    alike: dict[tuple[str, str], list[Judgement]] = {}
    for one in wrong:
        alike.setdefault((one.tensor, one.verdict), []).append(one)
    lines = [headline] if headline else []
    for several in [*alike.values()][:_SHOWN]:
        first, *others = several
        more = f" (and in {len(others)} more trials)" if others else ""
        lines.append(f"{_brief(first.message)}{more}")
        diagnosis = getattr(first, "diagnosis", "")
        lines += [f"  {_brief(diagnosis)}"] if diagnosis else []
    if len(alike) > _SHOWN:
        lines.append(f"and {len(alike) - _SHOWN} more tensors")
    if script:
        lines.append("this script shows the failure alone, until it passes:")
        try:
            lines.append(str(_written(test, script)))
        except OSError as error:  # the failure is shown all the same
            lines.append(f"not written: {error.strerror}: {error.filename}")
    else:
        lines.append(f"judge {_SMALL} numbers at most, and a script has them")
    return "\n".join(lines)


def _brief(line: str) -> str:
    whole = " ".join(line.split())
    return whole if len(whole) <= _LONG else f"{whole[:_LONG]}..."


def _written(test: str, script: str) -> Path:
    """Write a script to the folder in which the project keeps its last results."""
    from gradwatch.harness.project import documents
    from gradwatch.harness.project.records import CHECK

    kept = documents.is_kept(CHECK)
    place = documents.LATEST if kept else Path(tempfile.gettempdir())
    # Without underscores no pattern of pytest's takes it for a test.
    name = re.sub(r"[\W_]+", "-", test.rpartition("/")[2]).strip("-") or "repro"
    file = place / "repro" / f"{name}.py"
    documents.replace_file(file, script + "\n")
    return file


def _keep_check(test: str, fields: Mapping[str, Any]) -> None:
    """Keep the outcome in results/latest, as `gradwatch check` does."""
    from gradwatch.harness.project import documents
    from gradwatch.harness.project.records import CHECK, CheckRecord, NoSummary

    record = CheckRecord(**fields, test=test)
    documents.keep(CHECK, documents.document([record], NoSummary()))


def _script(
    op: Any, inputs: Sequence[Any], dy: Any, gradients: Sequence[Any], options: Any
) -> str:
    """A script that judges the same numbers again; empty where they are many."""
    cotangents = dy if isinstance(dy, list) else [dy]
    arrays = [*inputs, *gradients, *cotangents]
    if sum(a.size for a in arrays if a is not None) > _SMALL:
        return ""
    name = op if isinstance(op, str) else op.name
    given = ", ".join(map(_literal, (inputs, dy, gradients)))
    more = "".join(f", {k}={v!r}" for k, v in options.items() if k != "outputs")
    return (
        "import numpy as np\nimport gradwatch\n\nnan, inf = np.nan, np.inf\n"
        f"gradwatch.assert_agrees({name!r}, {given}{more})"
    )


def _array(value: Any) -> Any:
    if value is None:
        return None
    plain = value.detach().cpu() if hasattr(value, "detach") else value
    if "bfloat16" in str(getattr(plain, "dtype", "")) and hasattr(plain, "float"):
        plain = plain.float()  # NumPy has no such type; `dtype="bfloat16"` says it
    return np.asarray(plain.numpy() if hasattr(plain, "numpy") else plain)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if value is None:
        return "None"
    return f"np.array({value.tolist()}, {value.dtype.name!r})"


# The document ---------------------------------------------------------------------


class _Collector:
    """Collects the judgements of tests, wherever they ran; writes them at the end."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.records: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the judgements from a test's report."""
        if report.when == "call":
            for name, judged in report.user_properties:
                if name == _PROPERTY and isinstance(judged, list):
                    self.records += [{"test": report.nodeid, **j} for j in judged]

    def pytest_sessionfinish(self) -> None:
        """Write the document, whole or not at all."""
        from gradwatch.harness.project import documents

        passes = sum(r["verdict"] in ("agree", "convention") for r in self.records)
        summary = {"judged": len(self.records), "agree": passes}
        try:
            documents.write(documents.document(self.records, summary), self.target)
        except OSError as error:
            said = f"gradwatch: {error.strerror}: {self.target}"
            pytest.exit(said, pytest.ExitCode.TESTS_FAILED)
