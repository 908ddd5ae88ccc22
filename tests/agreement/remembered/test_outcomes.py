"""Outcomes that are remembered: the same document, and nothing that chance changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradwatch.harness.agreement import remembered as module
from gradwatch.harness.agreement.remembered import NotRemembered, Remembered
from gradwatch.harness.agreement.remote import Step, judged
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers.child import Failed
from tests.command_line import gradwatch
from tests.dashboard.browser.invented import agree_record


class Judge:
    """Stands for the child: two trials of each op, and which were judged."""

    def __init__(self) -> None:
        self.judged: list[str] = []
        self.special: dict[str, Any] = {}
        self.during: Callable[[], None] = lambda: None

    @property
    def ops(self) -> list[str]:
        """The ops of the trials that were judged."""
        return list(dict.fromkeys(case.partition("[")[0] for case in self.judged))

    def run(
        self,
        ops: Sequence[str],
        request: Callable[[Sequence[str]], Asked],
        kind: object,
    ) -> Iterator[Step | Failed]:
        asked = request(ops)
        for op in ops:
            names = [f"{op}[{regime}-1-float32]" for regime in asked.regimes]
            names = [n for n in names if "ties" in n or not asked.cases]
            yield Step(op, names)
            for case in names:
                if (case, "cpu") not in asked.settled:
                    self.judged.append(case)
                    yield Step(op, [], self.verdicts(op, case), 1, 2)
        self.during()

    def verdicts(self, op: str, case: str) -> Agreement:
        """One record, right by default; that of "ties" is special where that is set."""
        fields, rest = {}, {}
        if "ties" in case:
            fields = {k: v for k, v in self.special.items() if k != "rest"}
            rest = self.special.get("rest", {})
        fields = {
            "backend": "torch_custom",
            "case": case,
            "framework_version": "1",
            **fields,
        }
        record = AgreeRecord(**{**agree_record(op, op), **fields})
        return Agreement([record], trials=[(case, "cpu")], **rest)


@pytest.fixture
def asked() -> Asked:
    return Asked(
        ops=["add", "mul"],
        backends=["torch_custom"],
        regimes=["normal", "ties"],
        dtypes=["float32"],
    )


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The keys that the ops have; numpy_manual is not installed."""
    by_op = {"add": "add 1", "mul": "1"}
    monkeypatch.setattr(
        module,
        "keys",
        lambda ops, *_: (by_op.copy(), frozenset(["numpy_manual"])),
    )
    monkeypatch.setattr(known, "load", lambda: ())
    return by_op


def run(
    judge: Judge,
    asked: Asked,
    place: Path,
    *,
    fresh: bool = False,
) -> Agreement:
    """A run with the cache in a folder."""
    memory = Remembered(asked, place, fresh=fresh)
    return judged(asked, judge, remembered=memory)  # type: ignore[arg-type]  # a stand-in


def test_what_was_judged_is_not_judged_again(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    first, judge = run(Judge(), asked, tmp_path), Judge()
    again = run(judge, asked, tmp_path)
    assert judge.ops == []
    assert again.records == first.records
    assert (first.recalled, first.remembered) == (0, {})
    assert again.recalled == len(again.records) == 4
    assert {*again.remembered} == {"add", "mul"}
    assert all(date.startswith("20") for date in again.remembered.values())


def test_what_a_first_look_judged_is_not_judged_again_for_the_whole(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    asked.backends, asked.sampled, asked.first_case = ["torch_custom"], True, True
    run(Judge(), asked, tmp_path)
    asked.first_case, judge = False, Judge()
    run(judge, asked, tmp_path)
    assert judge.judged == []


def test_after_a_change_of_a_page_that_page_is_judged(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    run(Judge(), asked, tmp_path)
    present["mul"], judge = "2", Judge()
    assert run(judge, asked, tmp_path).recalled == 2
    assert judge.ops == ["mul"]


def test_fresh_judges_all_and_remembers_that(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    run(Judge(), asked, tmp_path)
    judge = Judge()
    judge.special = {"ratio": 2.5, "op": "add"}
    assert run(judge, asked, tmp_path, fresh=True).recalled == 0
    assert len(judge.judged) == 4
    ratios = [r.ratio for r in run(Judge(), asked, tmp_path).records]
    assert ratios.count(2.5) == 2


LISTED = {"expected_verdict": "crash", "verdict": "crash"}


@pytest.mark.parametrize(
    ("special", "kept"),
    [
        ({"verdict": "disagree"}, False),
        ({"verdict": "disagree", "expected_verdict": "disagree"}, True),
        (LISTED, True),
        ({**LISTED, "expected_verdict": "agree"}, False),
        ({"verdict": "error"}, False),
        ({"verdict": "timeout", "expected_verdict": "timeout"}, False),
        ({"rest": {"unrepeatable": ["it"]}}, False),
        ({"rest": {"missing": {"torch_custom": "it did not start"}}}, False),
        ({"rest": {"missing": {"numpy_manual": "it is not installed"}}}, True),
    ],
    ids=str,
)
def test_what_is_not_expected_or_may_be_chance_is_judged_again(
    tmp_path: Path,
    asked: Asked,
    present: dict[str, str],
    special: dict[str, Any],
    kept: bool,
) -> None:
    asked = Asked(
        **{n: getattr(asked, n) for n in asked.__struct_fields__} | {"ops": ["add"]}
    )
    first, again = Judge(), Judge()
    first.special = special
    run(first, asked, tmp_path)
    run(again, asked, tmp_path)
    assert again.judged == ([] if kept else ["add[ties-1-float32]"])


def test_a_filter_reads_what_is_asked_and_keeps_what_it_judges(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    fields = {name: getattr(asked, name) for name in asked.__struct_fields__}
    some = Asked(**fields | {"cases": ["*[[]ties*", "*[ties*"]})
    run(Judge(), some, tmp_path)
    judge = Judge()
    run(judge, asked, tmp_path)
    assert judge.judged == ["add[normal-1-float32]", "mul[normal-1-float32]"]
    for narrow in (some, Asked(**fields | {"regimes": ["ties"]})):
        judge = Judge()
        assert [r.case for r in run(judge, narrow, tmp_path).records] == [
            f"{op}[ties-1-float32]" for op in ("add", "mul")
        ]
        assert judge.ops == []


def test_what_changes_while_it_is_judged_is_not_remembered(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    judge = Judge()
    judge.during = lambda: present.update(mul="2")
    run(judge, asked, tmp_path)
    for now in "12":
        present["mul"], judge = now, Judge()
        run(judge, asked, tmp_path)
        assert judge.ops == ["mul"]
        judge.during = lambda: None


def test_what_is_installed_while_it_is_judged_is_noticed(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()

    def keys(ops: Sequence[str], *_: object) -> Any:
        there = sorted(one.name for one in site.iterdir())
        return {op: f"{op} {there}" for op in ops}, frozenset()

    monkeypatch.setattr(module, "keys", keys)

    def again(during: Callable[[], None] = lambda: None) -> list[str]:
        judge = Judge()
        judge.during = during
        memory = Remembered(asked, tmp_path)
        judged(asked, judge, remembered=memory)  # type: ignore[arg-type]  # a stand-in
        return judge.ops

    assert again(lambda: (site / "new-1.dist-info").mkdir(exist_ok=True)) == [
        "add",
        "mul",
    ]
    assert again() == ["add", "mul"], "neither what was there before nor what is now"
    assert again() == []


def test_an_op_that_failed_is_not_remembered(
    tmp_path: Path, asked: Asked, present: dict[str, str]
) -> None:
    class Failing(Judge):
        def run(self, *arguments: Any) -> Iterator[Step | Failed]:
            yield from super().run(*arguments)
            yield Failed("mul", "mul[ties-1-float32]", "error", "its formula raised")

    run(Failing(), asked, tmp_path)
    judge = Judge()
    run(judge, asked, tmp_path)
    assert judge.ops == ["mul"]


def test_why_nothing_is_remembered_is_said(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotRemembered("torch: without a list of files")

    monkeypatch.setattr(module, "keys", refuse)
    memory = Remembered(asked, tmp_path)
    assert not judged(asked, Judge(), remembered=memory).recalled  # type: ignore[arg-type]  # as above
    assert memory.why_not == "torch: without a list of files"
    cuda = Asked(ops=["add"], backends=["torch_custom"], devices=["cpu", "cuda"])
    assert "on the CPU" in Remembered(cuda, tmp_path).why_not


def test_the_command_says_what_it_remembers_and_its_document_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWATCH_CACHE", str(tmp_path))
    call = ["agree", "--op", "add", "--op", "softmax", "--regime", "normal"]
    call += ["--backend", "numpy_graph", "--backend", "numpy_manual", "--json"]
    documents = []
    for name, extra in (("first", []), ("again", []), ("fresh", ["--fresh"])):
        done = gradwatch(*call, tmp_path / name, *extra)
        assert done.returncode == 0, done.stderr
        said = " ".join(done.stdout.split())
        assert ("remembered, judged since 20" in said) == (name == "again")
        document = json.loads((tmp_path / name).read_text())
        document["records"].sort(key=lambda r: (r["case"], r["backend"], r["tensor"]))
        del document["environment"]["date"], document["summary"]["seconds"]
        recalled, since = (
            document["summary"].pop(n) for n in ("recalled", "remembered")
        )
        assert recalled == (len(document["records"]) if name == "again" else 0)
        assert {*since} == ({"add", "softmax"} if name == "again" else set())
        documents.append(document)
    assert documents[0] == documents[1] == documents[2]
