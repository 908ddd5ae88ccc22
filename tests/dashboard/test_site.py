"""The dashboard as files: what it says of results that are right, wrong or damaged."""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from lxml import html

from gradwatch.harness import dashboard
from gradwatch.harness.commands import watch
from gradwatch.harness.commands.report import command
from gradwatch.harness.dashboard import matrix as cells
from gradwatch.harness.dashboard import site as building
from gradwatch.harness.dashboard.matrix import (
    MachineResults,
    bar_length,
    families,
    machine_results,
    matrix,
    read_results,
    short,
    styles,
)
from gradwatch.harness.dashboard.site import NotASite, write_site
from gradwatch.harness.history import asv_results
from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from gradwatch.impls.catalogue import backend_names, op_names
from tests.command_line import gradwatch
from tests.dashboard.browser import invented
from tests.dashboard.browser.invented import agree_record, environment, time_record

MACHINE = invented.MACHINE


def shows(ops: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a site show these ops, whether there are results of them or not."""
    for module in (invented, cells):
        monkeypatch.setattr(module, "op_names", lambda: tuple(ops))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty results folder; its site shows four ops, in a tenth of the time."""
    shows(invented.FEW, monkeypatch)
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def written(results: Path) -> Path:
    """The site of a results folder."""
    write_site(results, results.parent / "html")
    return results.parent / "html"


def said(site: Path, page: str = "index.html") -> str:
    """The text of a page, with single blanks."""
    content = html.parse(site / page).getroot().find("body").text_content()
    return " ".join(content.split())


def known_of(results: Path) -> MachineResults:
    """What is known of the invented machine."""
    return machine_results(read_results(results), MACHINE)


def judged(results: Path, *records: dict[str, object], number: int = 1) -> None:
    """Write the newest document of the agreement suite."""
    file = results / "latest" / "agree.json"
    invented.write_document(file, list(records), environment(number), missing={})


# Pages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ops",
    [invented.FEW, pytest.param(op_names()[::4], marks=pytest.mark.slow)],
    ids=["few", "each fourth"],
)
def test_every_link_leads_to_a_page_or_a_place_on_it(
    results: Path, monkeypatch: pytest.MonkeyPatch, ops: tuple[str, ...]
) -> None:
    shows(ops, monkeypatch)
    host = "https://code.example/us/it/commit/"
    monkeypatch.setattr("gradwatch.harness.project.git.commit_pages", lambda _: host)
    invented.write_agree(results, 9)
    invented.write_time(results, 9)
    invented.write_history(results, 10)
    other = results / "recorded" / "other-4core" / "agree.json"
    about = environment(3, "other-4core")
    invented.write_document(other, [agree_record("add", "numpy_graph")], about)
    site = written(results)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == 3 + len(ops) + len(backend_names()) + 3 + 1 + 1
    ids = {p: set(html.parse(p).xpath("//@id")) for p in pages}
    for page in pages:
        for link in html.parse(page).xpath("//@href | //@src"):
            if link.startswith("data:"):
                continue
            if link.startswith(host):  # nothing that a page loads by itself
                assert link in html.parse(page).xpath("//a/@href")
                assert page.name == "changes.html"
                continue
            address, _, place = link.partition("#")
            target = (page.parent / address.partition("?")[0]).resolve()
            target = target if address else page
            assert target.is_file(), f"{page.relative_to(site)}: {link}"
            if "=" in place:  # a choice, for the page's script
                continue
            assert not place or place in ids[target], f"{page.name}: {link}"


def test_text_of_results_is_escaped(results: Path) -> None:
    wrong = agree_record("add", "numpy_graph", verdict="error", message="<b>bold</b>")
    judged(results, wrong)
    invented.write_finding(results, "add")
    site = written(results)
    assert "<b>bold</b>" in said(site, "findings.html")
    page = (site / "op" / "add.html").read_text()
    assert "<script>bad()" not in page


def test_a_case_is_quoted_for_the_shell(results: Path) -> None:
    wrong = agree_record("add", "numpy_graph", verdict="error", case="a'; touch b")
    judged(results, wrong)
    shown = said(written(results), "findings.html")
    assert shlex.join(["gradwatch", "agree", "--case", "a'; touch b"]) in shown


def test_no_time_is_shown_for_a_wrong_gradient(results: Path) -> None:
    right = agree_record("add", "numpy_graph")
    wrong = agree_record("add", "numpy_manual", verdict="disagree", ratio=99.0)
    judged(results, right, wrong)
    times = [
        time_record("add", "numpy_graph", seconds=2e-5),
        time_record("add", "numpy_manual", seconds=1.234e-6),
    ]
    invented.write_document(results / "latest" / "time.json", times, environment(1))
    site = written(results)
    text = said(site, "op/add.html")
    assert "No time of numpy_manual is shown" in text
    assert "20 µs" in text
    assert "1.23 µs" not in text
    assert "1.23" not in (site / "op" / "add.charts.js").read_text()


def test_what_was_compared_in_turn_is_told(results: Path) -> None:
    invented.write_time(results, 1)
    site = written(results)
    assert "Compared in turn: 1 slower" in said(site)
    row = html.parse(site / "changes.html").xpath("//tbody/tr")[0]
    assert [cell.text_content() for cell in row][:3] == [
        *("torch_autograd", "torch_custom", "softmax"),
    ]
    assert row[6].text_content() == "1.310×"


def test_speed_is_relative_to_the_fastest_right_backend(results: Path) -> None:
    fast_but_wrong = agree_record("add", "torch_custom", verdict="nonfinite")
    names = ("numpy_graph", "numpy_manual")
    judged(results, *(agree_record("add", name) for name in names), fast_but_wrong)
    times = [
        time_record("add", name, phase=phase, seconds=seconds)
        for name, pair in {
            "numpy_graph": (1e-5, 1e-5),
            "numpy_manual": (2e-5, 8e-5),
            "torch_custom": (1e-6, 1e-6),
        }.items()
        for phase, seconds in zip(("forward", "backward"), pair, strict=True)
    ]
    invented.write_document(results / "latest" / "time.json", times, environment(1))
    row = matrix(known_of(results))["add"]
    assert row["numpy_graph"].speed == pytest.approx(1.0)
    assert row["numpy_manual"].speed == pytest.approx(4.0), "the root of 2 * 8"
    assert row["torch_custom"].speed is None


def test_what_was_not_timed_is_listed_with_its_reason(results: Path) -> None:
    judged(results, agree_record("add", "numpy_graph"))
    left_out = {"add 65536 float32 torch_custom": "crash: killed by SIGSEGV"}
    left_out["mul 65536 float32 torch_custom"] = "error: of another op"
    file = results / "latest" / "time.json"
    times = [time_record("add", "numpy_graph")]
    invented.write_document(file, times, environment(1), untimed=left_out)
    text = said(written(results), "op/add.html")
    assert "65536 float32 torch_custom: crash: killed by SIGSEGV" in text
    assert "of another op" not in text


def test_a_known_defect_is_marked_as_known(results: Path) -> None:
    defect = agree_record(
        "add", "oneflow_custom", verdict="crash", expected_verdict="crash"
    )
    judged(results, agree_record("add", "oneflow_custom"), defect)
    cell = matrix(known_of(results))["add"]["oneflow_custom"]
    assert (cell.verdict, cell.wrong, bool(cell.defect)) == ("crash", False, True)
    page = html.parse(written(results) / "index.html")
    path = "//td[contains(@class, 'known')]//*[@class='tag']/text()"
    assert page.xpath(path) == ["known"] * 2, "of the backend and of its framework"


def test_another_order_of_differentiation_is_kept_apart(results: Path) -> None:
    """A wrong hvp is marked and counted, and is no verdict on the first gradient."""
    right = agree_record("add", "numpy_graph", ratio=1.5)
    wrong = {"verdict": "disagree", "ratio": 99.0, "order": "hvp", "tensor": "hvp.dx"}
    lacking = agree_record("add", "numpy_manual", verdict="unsupported")  # no tensor
    judged(results, right, agree_record("add", "numpy_graph", **wrong), lacking)
    row = matrix(known_of(results))["add"]
    cell = row["numpy_graph"]
    assert (cell.verdict, cell.ratio, cell.wrong) == ("agree", 1.5, False)
    (numpy,) = (f for f in families(row) if f.name == "numpy")
    assert numpy.worst(row) is cell
    site = written(results)
    assert "1 of 2 tensors not as expected" in said(site)
    (marked, folded) = html.parse(site / "index.html").xpath(
        "//td//*[@class='order bad']"
    )
    assert marked.text_content() == folded.text_content() == "hvp ✗ disagree"
    assert "✗ 1 of 1 op not as expected" in said(site)
    assert "add on numpy_graph, hvp, 1 tensor" in said(site, "findings.html")
    assert "--backend numpy_graph --order hvp" in said(site, "findings.html")
    assert "hvp ✗ disagree" in said(site, "op/add.html")


def test_a_known_defect_of_another_order_looks_like_none_that_is_new(
    results: Path,
) -> None:
    defect = {"verdict": "nonfinite", "expected_verdict": "nonfinite", "order": "hvp"}
    forward = agree_record("add", "numpy_graph", order="jvp")
    judged(results, forward, agree_record("add", "numpy_graph", **defect))
    site = written(results)
    marks = html.parse(site / "index.html").xpath(
        "//td[@class!='fold']//*[@class='orders']/*"
    )
    assert {mark.get("class") for mark in marks} == {"order right", "order known"}
    assert "hvp ∞ nonfinite, known" in said(site, "op/add.html")
    assert "jvp ✓ agree" in said(site, "op/add.html")


def test_a_history_of_one_commit_confirms_nothing(results: Path) -> None:
    invented.write_history(results, 1, ops=invented.PLANTED[:1])
    told = said(written(results))
    assert "Times, but no history yet" in told
    assert "nothing confirmed" not in told
    assert "History: 1 commit, to" in told
    assert "The commit and what changed" in told


@pytest.mark.slow
def test_a_step_is_linked_to_its_commit(results: Path) -> None:
    invented.write_history(results, invented.STEP + 12, ops=invented.PLANTED[:1])
    site = written(results)
    name = f"c-{invented.commit(invented.STEP)[:12]}"
    link = f"//table[caption='Changes of level']//a[@href='../changes.html#{name}']"
    op, backend = invented.PLANTED
    (found,) = html.parse(site / "op" / f"{op}.html").xpath(link)
    row = " ".join(found.xpath("ancestor::tr")[0].text_content().split())
    assert backend in row
    assert re.search(r"\+(39|40|41)\.\d %", row), "1.4 times as long was planted"
    rows = html.parse(site / "changes.html").xpath(
        "//table[@id='moves-table']//tbody/tr"
    )
    texts = [" ".join(one.text_content().split()) for one in rows]
    assert texts
    assert all(" suspected " in text for text in texts), "nobody has watched"
    worse = sum("▲" in text and " pass," in text for text in texts)
    assert f" suspected, {worse} of them slower " in said(site, "index.html")


def watched(results: Path, metric: str, **found: Any) -> None:
    """Write what a watch has found in a series of the planted op and backend."""
    op, backend = invented.PLANTED
    (series, *_) = [
        one
        for one in asv_results.read(results / "asv", [], [])
        if (one.op, one.parameters["backend"]) == invented.PLANTED
        and one.metric == metric
    ]
    alert = {
        "series": series.name,
        "machine": MACHINE,
        "environment": series.environment,
        "op": op,
        "backend": backend,
        "metric": metric,
        "unit": series.unit,
        "kind": "step",
        "range": "a..b",
        "candidates": 1,
        "worse": True,
        **found,
    }
    invented.write_document(results / "latest" / "watch.json", [alert], environment(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "shown"), [("confirmed", True), ("accepted", True), ("cleared", False)]
)
def test_the_word_of_the_watch_on_a_change_is_final(
    results: Path, state: str, shown: bool
) -> None:
    """The planted step is found anew only where there is no document of the watch."""
    invented.write_history(results, invented.STEP + 12, ops=invented.PLANTED[:1])
    told = {"state": state, "suspected": False, "fails": state == "confirmed"}
    change = {"relative_change": 0.4, "low": 0.3, "high": 0.5, "confidence": 0.99}
    commit = invented.commit(invented.STEP)
    watched(results, "time_backward", commit=commit, **change, **told)
    page = written(results) / "op" / f"{invented.PLANTED[0]}.html"
    rows = html.parse(page).xpath("//table[caption='Changes of level']//tbody/tr")
    assert len(rows) == shown
    assert all(f"+40.0 % {state}" in row.text_content() for row in rows)


@pytest.mark.parametrize("page", ["changes.html", "op/{op}.html"])
def test_a_change_without_bounds_is_shown(results: Path, page: str) -> None:
    """A gradient that was exact and is wrong has grown without bound: null is ∞."""
    invented.write_history(results, 4, ops=invented.PLANTED[:1])
    told = {"state": "suspected", "suspected": True, "fails": False}
    change = {"relative_change": None, "low": -0.969, "high": None, "confidence": 0.5}
    commit = invented.commit(3)
    watched(results, "track_gradient_ratio", commit=commit, **change, **told)
    text = said(written(results), page.format(op=invented.PLANTED[0]))
    assert "▲ ×∞ suspected −96.9 % to ×∞" in text


# Damaged and missing input ----------------------------------------------------------


def _foreign(file: Path) -> None:
    file.write_text('["no", "document"]')


def _newer(file: Path) -> None:
    file.write_text('{"schema": 3, "environment": {}, "summary": {}, "records": []}')


def _cut(file: Path) -> None:
    file.write_text('{"schema": 1, "environment": {"machine": "x"}, "rec')


def _no_records(file: Path) -> None:
    file.write_text('{"schema": 1, "environment": {}, "summary": {}, "records": 7}')


def _binary(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00{")


def _odd_verdict(file: Path) -> None:
    odd = agree_record("add", "numpy_graph", verdict="splendid")
    invented.write_document(file, [odd], environment(1))


def _lacks_tensor(file: Path) -> None:
    record = agree_record("add", "numpy_graph")
    del record["tensor"]
    invented.write_document(file, [record], environment(1))


def _unnamed(file: Path) -> None:
    judged = [agree_record("add", "numpy_graph")]
    invented.write_document(file, judged, environment(1))


def _negative_time(file: Path) -> None:
    times = [time_record("add", "numpy_graph", seconds=-1.0)]
    invented.write_document(file, times, environment(1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_foreign, "Expected `object`, got `array`"),
        (_newer, "schema 3, this version reads 1"),
        (_cut, "not readable as JSON"),
        (_no_records, "Expected `array`, got `int` - at `$.records`"),
        (_binary, "not readable as JSON"),
        (_odd_verdict, "Invalid enum value 'splendid'"),
        (_lacks_tensor, "Object missing required field `tensor`"),
        (_negative_time, "Expected `float` > 0.0"),
        (_unnamed, "its name begins with no kind of document: agree"),
    ],
)
def test_a_damaged_document_is_named_and_the_rest_is_shown(
    results: Path, damage: Callable[[Path], None], message: str
) -> None:
    invented.write_agree(results, 5)
    name = {_negative_time: "time-damaged", _unnamed: "damaged"}.get(damage)
    name = f"latest/{name or 'agree-damaged'}.json"
    damage(results / name)
    made = CliRunner(catch_exceptions=False).invoke(
        command, ["--results", str(results), "--output", str(results.parent / "html")]
    )
    assert name in made.stderr
    assert message in made.stderr
    text = said(results.parent / "html")
    assert f"{name}: {message}" in text
    assert "1 file is not shown in full" in text
    n = len(invented.FEW)
    assert f"1 of {n} ops not as expected" in text


def test_a_damaged_history_file_costs_one_commit(results: Path) -> None:
    invented.write_history(results, 12)
    file = results / "asv" / MACHINE / f"{invented.commit(4)[:8]}-prebuilt-py3.11.json"
    file.write_text('{"commit_hash": ')
    text = said(written(results))
    assert f"asv/{MACHINE}/{file.name}: not readable as JSON" in text
    assert "History: 11 commits" in text


def test_what_agree_has_judged_is_on_the_page_without_an_option(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LATEST", results / "latest")
    monkeypatch.delenv(documents.VARIABLE)
    call = ("--op", "add", "--backend", "numpy_manual", "--regime", "normal")
    assert gradwatch("agree", *call).returncode == 0
    site = written(results)
    assert "Nothing judged yet" not in said(site)
    assert "numpy manual ✓ agree" in said(site, "op/add.html")


def test_empty_results_say_so(results: Path) -> None:
    site = written(results)
    assert "Nothing judged yet" in said(site)
    assert "No history of this machine yet" in said(site, "changes.html")
    assert "This op has not been judged on this machine" in said(site, "op/add.html")


def test_machines_are_never_mixed(results: Path) -> None:
    judged(results, agree_record("add", "numpy_graph", ratio=1.25), number=9)
    theirs = [agree_record("add", "numpy_graph", ratio=7.75)]
    file = results / "latest" / "agree-copied.json"
    invented.write_document(file, theirs, environment(3, "other-4core"))
    invented.write_history(results, 6, "other-4core")
    site = written(results)
    mine, other = (
        said(site, p) for p in ("op/add.html", "machine/other-4core/op/add.html")
    )
    assert "1.2" in mine
    assert "7.8" not in mine
    assert "No history yet" in mine
    assert "7.8" in other
    assert "No history yet" not in other


def test_a_renamed_op_is_shown_as_such(results: Path) -> None:
    judged(results, agree_record("softmaxx", "numpy_graph", regime="of old"))
    site = written(results)
    assert "No op of this checkout is called softmaxx any more" in said(
        site, "op/softmaxx.html"
    )
    assert "softmaxx" in said(site)


def test_the_formulas_of_a_page_are_shown_as_written(results: Path) -> None:
    page = html.parse(written(results) / "op" / "softmax.html")
    (formula,) = page.xpath("//pre[@class='formulas']/text()")
    assert formula.split("  ")[2] == "y = exp(x) / sum(exp(x))"
    assert formula.endswith("  dx = y * (dy - sum(dy * y))")


def test_an_older_verdict_is_marked(results: Path) -> None:
    recorded = results / "recorded" / MACHINE / "agree.json"
    both = [agree_record(op, "numpy_graph") for op in ("add", "mul")]
    invented.write_document(recorded, both, environment(1))
    judged(results, agree_record("add", "numpy_graph"), number=2)
    cells = matrix(known_of(results))
    assert not cells["add"]["numpy_graph"].older
    assert invented.commit(1)[:8] in cells["mul"]["numpy_graph"].older


def test_a_damaged_finding_is_named(results: Path) -> None:
    invented.write_finding(results)
    (results / "findings" / "index.json").write_text("{")
    told = [f"{t.file}: {t.why}" for t in read_results(results).troubles]
    assert len(told) == 1
    assert told[0].startswith("findings/index.json: not readable as JSON")


# Writing -----------------------------------------------------------------------------


def test_two_that_write_the_same_site_leave_it_whole(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first is in the middle of it."""
    fill, second = building._write_all, threading.Thread(target=written, args=[results])

    def filled(*arguments: Any) -> list[Unreadable]:
        troubles = fill(*arguments)
        if second.ident is None:
            second.start()
            time.sleep(0.5)  # the second has begun, unless it waits
        return troubles

    monkeypatch.setattr(building, "_write_all", filled)
    site = written(results)
    second.join()
    assert (site / "index.html").exists()
    assert written(results) == site


def test_a_folder_that_is_no_dashboard_is_left_alone(
    results: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "precious"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(NotASite, match="precious is not a dashboard"):
        write_site(results, mine)
    assert (mine / "thesis.txt").read_text() == "all of it"


def test_a_site_that_cannot_be_finished_leaves_the_old_one(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = written(results)
    before = (site / "index.html").read_text()
    invented.write_agree(results, 5)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(building, "_write_lists", full)
    with pytest.raises(OSError, match=r"No space left on device: .*html"):
        written(results)
    assert (site / "index.html").read_text() == before
    assert sorted(p.name for p in results.parent.iterdir()) == ["html", "results"]


def test_the_command_says_where_the_page_is(results: Path) -> None:
    output = results.parent / "html"
    made = CliRunner().invoke(
        command, ["--results", str(results), "--output", str(output)]
    )
    last = made.output.splitlines()[-1]
    assert f"The page is {output / 'index.html'} (" in last
    assert last.endswith("MB); --open shows it")


@pytest.mark.parametrize("asked", [command, watch.command], ids=["report", "watch"])
def test_a_results_folder_that_is_not_there_is_a_wrong_call(
    tmp_path: Path, asked: click.Command
) -> None:
    made = CliRunner().invoke(asked, ["--results", str(tmp_path / "nowhere")])
    assert made.exit_code == 2
    assert "no folder" in made.output


# Formulas, sources, looks ------------------------------------------------------------


def test_every_runner_looks_different() -> None:
    looks = styles(backend_names())
    assert len({(s.colour, s.marker) for s in looks.values()}) == len(backend_names())


def _colours() -> list[dict[str, str]]:
    """The roles' colours of the light scheme and of the dark one."""
    css = (Path(dashboard.__path__[0]) / "static/dashboard.css").read_text()
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", css)
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""
    light, dark = sorted((luminance(_rgb(c)) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(rgb: Sequence[float]) -> float:
    """Relative luminance of sRGB parts between 0 and 1, as WCAG 2.2 defines it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in rgb
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stands_out_from_every_background(scheme: int) -> None:
    roles = _colours()[scheme]
    texts = ("text", "muted", "accent", "good", "bad", "warn")
    code = ("keyword", "string", "number", "comment", "name")
    pairs = [(text, back) for text in texts for back in ("page", "raised")]
    pairs += [(text, "raised") for text in code]
    pairs += [(t, f"{t}-back") for t in ("good", "bad", "warn")]
    pairs += [(t, b) for t in ("text", "muted") for b in ("good-back", "calm-back")]
    faint = [p for p in pairs if contrast(roles[p[0]], roles[p[1]]) < 4.5]
    assert not faint


@pytest.mark.parametrize("scheme", [0, 1])
def test_lines_of_charts_stand_out_from_the_page(scheme: int) -> None:
    page = _colours()[scheme]["page"]
    looks = styles(backend_names()).values()
    assert all(contrast(look.colour, page) >= 3 for look in looks)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *[(1.64, "1.6"), (0, "0"), (170.4, "170"), (5.41e8, "5.4e8"), (3e-5, "3.0e-5")],
        *[(float("inf"), "∞"), (None, "")],
    ],
)
def test_a_ratio_is_shown_in_two_digits(value: float | None, shown: str) -> None:
    assert short(value) == shown


def test_a_bar_is_on_a_log_scale() -> None:
    halves = [bar_length(ratio) for ratio in (0.01, 10**0.5, 1000, float("inf"))]
    assert halves == pytest.approx([0, 0.5, 1, 1])


# The overview -----------------------------------------------------------------------


def with_a_wrong_gradient(results: Path, since: int, commits: int) -> None:
    """A history in which a gradient of the planted op and backend is wrong."""
    invented.write_history(results, commits, ops=invented.PLANTED[:1])
    name = f"bench_accuracy.{invented.PLANTED[0]}.track_gradient_ratio"
    for number in range(since, commits):
        file = invented.commit(number)[:8] + "-prebuilt-py3.11.json"
        place = results / "asv" / MACHINE / file
        content = json.loads(place.read_text())
        (values, (_, _, names), *_) = content["results"][name]
        at = range(names.index(repr(invented.PLANTED[1])), len(values), len(names))
        for one in at:  # in every precision
            values[one] = 4e5
        place.write_text(json.dumps(content))


@pytest.mark.parametrize("judged_too", [True, False])
def test_a_wrong_gradient_is_told_with_its_first_commit(
    results: Path, judged_too: bool
) -> None:
    """With two runs after it, before anybody has watched, and without a verdict."""
    op, backend = invented.PLANTED
    with_a_wrong_gradient(results, 3, 5)
    if judged_too:
        judged(results, agree_record(op, backend, verdict="disagree", ratio=4e5))
    site = written(results)
    since = f"{op} on {backend} since {invented.commit(3)[:8]}"
    assert since in said(site)
    (card,) = html.parse(site / "index.html").xpath(
        "//section[@aria-labelledby='right']"
    )
    assert card.get("class") == "bad"
    (first, *_) = html.parse(site / "index.html").xpath(
        "//table[@id='commits-table']/tbody/tr"
    )
    text = " ".join(first.text_content().split())
    assert text.startswith(invented.commit(3)[:8]), "the worst commit comes first"
    assert f"✗ {op} on {backend} became wrong" in text
    assert text.count(f"{op} on {backend}") == 1, "in however many precisions"
    assert f"✗ {op} on {backend} still wrong" in said(site)
    assert "✗ became wrong confirmed" in said(site, "changes.html")


def test_the_diagnosis_of_a_wrong_tensor_is_told_once_on_each_page(
    results: Path,
) -> None:
    cause = {"verdict": "disagree", "ratio": 99.0, "diagnosis": "`y` is negated"}
    judged(results, agree_record("add", "numpy_graph", **cause))
    site = written(results)
    for page in ("index.html", "op/add.html", "findings.html"):
        assert said(site, page).count("y is negated") == 1


def test_a_function_that_was_checked_is_named_once(results: Path) -> None:
    name = "Fast.apply against gelu"
    row = {"name": name, "passes": False, "told": f"{name}: FAILS, 1 of 2 wrong"}
    file = results / "latest" / "check.json"
    invented.write_document(file, [row], environment(1))
    site = written(results)
    assert said(site).count(name) == 1


def test_a_function_that_fails_is_said_first_and_no_answer_is_green(
    results: Path,
) -> None:
    judged(results, agree_record("add", "numpy_graph"))
    rows = [
        {"name": f"f{passes}", "passes": passes, "told": "told"}
        for passes in (True, False)
    ]
    invented.write_document(results / "latest" / "check.json", rows, environment(1))
    page = html.parse(written(results) / "index.html")
    (right,) = page.xpath("//section[@aria-labelledby='right']")
    assert right.get("class") == "bad"
    first, *_ = right.xpath("p[@class='said']")
    assert first.text_content() == "✗ 1 of 2 checked functions wrong"


def test_a_right_history_accuses_no_commit(results: Path) -> None:
    invented.write_history(results, 5, ops=invented.PLANTED[:1])
    assert "✗" not in said(written(results)).partition("How to read this")[0]


def test_backends_that_were_not_run_are_no_columns_but_can_be_read(
    results: Path,
) -> None:
    lacking = agree_record("add", "numpy_manual", verdict="unsupported")
    judged(results, agree_record("add", "numpy_graph"), lacking)
    site = written(results)
    assert "numpy_manual: no page has its dialect" in said(site)
    heads = html.parse(site / "index.html").xpath("//thead//th[@class='one']/a/@href")
    assert heads == ["backend/numpy_graph.html"]
    others = len(backend_names()) - 1
    for page in ("index.html", "op/add.html"):
        assert f"+{others} backends not run here" in said(site, page)
    assert sorted(p.stem for p in (site / "backend").iterdir()) == ["numpy_graph"]
    assert f"+{len(invented.FEW) - 1} ops without a verdict" in said(site)


def test_a_machine_with_a_history_alone_shows_it_first(results: Path) -> None:
    invented.write_history(results, 4)
    site = written(results)
    page = html.parse(site / "index.html")
    classes = page.xpath("//div[@class='answers']/section/@class")
    assert "bad" not in classes
    assert page.xpath("//table[@id='matrix-table']") == []
    assert len(page.xpath("//table[@id='commits-table']/tbody/tr")) == 4
    assert "Nothing judged yet" in said(site, "findings.html")


def test_each_op_names_its_fastest_backend(results: Path) -> None:
    names = ("numpy_graph", "numpy_manual")
    judged(results, *(agree_record("add", name) for name in names))
    times = [time_record("add", n, seconds=1e-5 * (1 + i)) for i, n in enumerate(names)]
    invented.write_document(results / "latest" / "time.json", times, environment(1))
    page = html.parse(written(results) / "index.html")
    assert page.xpath("//a[@class='best']/text()") == ["numpy_graph"]
    assert "numpy_graph in 1" in said(results.parent / "html")
