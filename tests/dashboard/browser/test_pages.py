"""The dashboard in a real browser: offline, from files, by keyboard, on a phone."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from lxml import html
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from gradwatch.impls.catalogue import backend_names, op_names
from tests.dashboard.browser import invented

pytestmark = pytest.mark.browser

PAGES = (
    *("index.html", "op/softmax.html", "changes.html"),
    *("findings.html", "backend/torch_custom.html"),
)
PATIENCE = 30  # seconds: a busy machine draws slowly


def visit(
    browser: Chrome, page: Path, query: str = "", *, width: int = 1280, scheme: str = ""
) -> None:
    """Open a page at a width and in a colour scheme, and wait for all its charts.

    Nothing is scrolled: up to Chromium 155, `scrollIntoView` moves the place from which
    the Tab key starts.
    """
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # what it holds is forgotten
    look(browser, width=width, scheme=scheme)
    browser.get(page.as_uri() + query)
    missing = "return document.querySelector('.chart:not([data-drawn])') === null"
    until(browser, lambda: browser.execute_script(missing))


def look(browser: Chrome, *, width: int = 1280, scheme: str = "") -> None:
    """Have the browser's window a width, and its user prefer a colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme or "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture(scope="module", params=PAGES)
def opened(chromium: Chrome, site: Path, request: pytest.FixtureRequest) -> Chrome:
    """The browser, with a page that is loaded once for all that is asked of it."""
    visit(chromium, site / request.param)
    return chromium


def until(browser: Chrome, holds: Any) -> Any:
    """Wait for something to hold."""
    return WebDriverWait(browser, PATIENCE, 0.05).until(lambda _: holds())


def points(browser: Chrome, chart: str) -> dict[str, list[Any]]:
    """The columns of the points that a chart shows."""
    script = "return gradwatch.points(arguments[0])"
    columns: dict[str, list[Any]] = browser.execute_script(script, chart)
    return columns


def column(browser: Chrome, number: int) -> list[str]:
    """The cells of a column of the table of ratios."""
    return shown(browser, f"#ratios tbody td:nth-child({number})")


def shown(browser: Chrome, path: str) -> list[str]:
    """The texts of all elements of a kind that are seen, in one question."""
    script = """return [...document.querySelectorAll(arguments[0])]
        .filter(e => e.checkVisibility()).map(e => e.innerText.trim())"""
    texts: list[str] = browser.execute_script(script, path)
    return texts


def focus_by_tab(browser: Chrome, wanted: WebElement) -> None:
    """Reach an element as the keyboard does."""
    browser.execute_script("arguments[0].ownerDocument.activeElement.blur()", wanted)
    for _ in range(80):
        if browser.switch_to.active_element == wanted:
            return
        browser.switch_to.active_element.send_keys(Keys.TAB)
    raise AssertionError(f"the tab key does not reach {wanted.text}")


def requests(browser: Chrome) -> list[str]:
    """The addresses that were asked for since the log was last read."""
    events = [
        json.loads(entry["message"])["message"]
        for entry in browser.get_log("performance")
    ]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def complaints(browser: Chrome) -> list[str]:
    """What the console was told that is no mere information."""
    log = browser.get_log("browser")
    return [entry["message"] for entry in log if entry["level"] != "INFO"]


def test_no_file_exceeds_two_megabytes(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) < 2e6


LOCAL = ("file:", "data:", "about:")


def test_nothing_leaves_the_machine_and_the_console_is_silent(opened: Chrome) -> None:
    assert not complaints(opened)
    asked = requests(opened)
    assert asked
    assert all(url.startswith(LOCAL) for url in asked)


def test_the_first_tab_reaches_the_skip_link(chromium: Chrome, site: Path) -> None:
    """Where focus starts does not depend on the charts: they have all been drawn."""
    for page in PAGES:
        visit(chromium, site / page)
        chromium.switch_to.active_element.send_keys(Keys.TAB)
        assert chromium.switch_to.active_element.text == "Skip to the content"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window(opened: Chrome, width: int) -> None:
    look(opened, width=width)
    script = "return document.documentElement.scrollWidth"
    until(opened, lambda: opened.execute_script(script) <= width)  # charts follow later


def test_a_long_name_of_an_op_pushes_no_verdict_out_of_a_phone_s_window(
    chromium: Chrome, site: Path
) -> None:
    rename = "document.querySelectorAll(arguments[0]).forEach(e => e.textContent = %r)"
    longest, place = rename % ("a_long_name_of_a_kernel" * 6), ".matrix tbody th > a"
    visit(chromium, site / "index.html", width=390)
    chromium.execute_script(longest, place)
    cell = chromium.find_element(By.CSS_SELECTOR, ".matrix tbody td.fold")
    assert cell.rect["x"] + cell.rect["width"] <= 390
    visit(chromium, site / "op/softmax.html", width=390)
    chromium.execute_script(longest, "h1")
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(
    ("scheme", "rules"), [("light", ()), ("dark", ("color-contrast",))]
)
def test_axe_finds_no_violation(
    opened: Chrome, scheme: str, rules: tuple[str, ...]
) -> None:
    """The schemes differ in nothing but colours."""
    look(opened, scheme=scheme)
    for closed in opened.find_elements(By.TAG_NAME, "details"):
        opened.execute_script("arguments[0].open = true", closed)
    assert not violations(opened, *rules)


def test_a_planted_request_and_complaint_are_seen(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "index.html")
    chromium.execute_script("new Image().src = 'https://nowhere.invalid/a.png'")
    until(chromium, lambda: not all(u.startswith(LOCAL) for u in requests(chromium)))
    chromium.execute_script("console.error('planted')")
    assert any("planted" in told for told in complaints(chromium))


def violations(browser: Chrome, *rules: str) -> list[tuple[str, list[str]]]:
    """The violations of some rules, or of all, that axe-core finds, and where.

    It is not asked for what passes: listing that takes longer than the violations.
    """
    axe = (resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")
    browser.execute_script(axe)
    options: dict[str, Any] = {"resultTypes": ["violations"], "iframes": False}
    options |= {"runOnly": list(rules)} if rules else {}
    script = "axe.run(arguments[0]).then(arguments[1])"
    found = browser.execute_async_script(script, options)
    return [
        (violation["id"], [node["html"][:120] for node in violation["nodes"][:3]])
        for violation in found["violations"]
    ]


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        ("<p style='color:#bbb;background:#fff'>faint</p>", "color-contrast"),
        ("<select><option>unlabelled</option></select>", "select-name"),
        ("<h5>two levels deeper</h5>", "heading-order"),  # moderate
    ],
)
def test_axe_finds_a_planted_violation(
    chromium: Chrome, site: Path, planted: str, rule: str
) -> None:
    visit(chromium, site / "changes.html")
    script = "document.querySelector('h1').insertAdjacentHTML('afterend', arguments[0])"
    chromium.execute_script(script, planted)
    assert rule in [violation for violation, _ in violations(chromium)]
    assert rule in [violation for violation, _ in violations(chromium, rule)]


def test_the_legend_hides_a_backend_by_keyboard(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "op" / "add.html")
    assert "torch_custom" in points(chromium, "times-float32-forward")["runner"]
    path = '.legend[data-for="times"] input[value="torch_custom"]'
    box = chromium.find_element(By.CSS_SELECTOR, path)
    focus_by_tab(chromium, box)
    box.send_keys(Keys.SPACE)
    assert "torch_custom" not in points(chromium, "times-float32-forward")["runner"]


#: What a history shows at first: the framework's own gradient, and the project's.
SHOWN = ("torch_autograd", "torch_custom")
RINGS = "return gradwatch.source(arguments[0], 'rings').get_column('x')"


TICKS = """
const models = Bokeh.documents.flatMap(one => [...one._all_models.values()]);
const format = models.find(one => one.type == "NumeralTickFormatter");
return format.doFormat([1e3, 1e5, 1e7], {});"""


def test_an_axis_of_bytes_names_its_unit_once(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "op" / "add.html")
    assert chromium.execute_script(TICKS) == ["1 KB", "100 KB", "10 MB"]


def test_the_history_rings_the_planted_step(chromium: Chrome, site: Path) -> None:
    op, backend = invented.PLANTED
    visit(chromium, site / "op" / f"{op}.html")
    assert chromium.execute_script(RINGS, "history-0") == [invented.STEP]
    commit = invented.commit(invented.STEP)[:8]
    rows = shown(chromium, "#history ~ .scroll tr")
    assert any(backend in row and commit in row for row in rows)


def choose_figure(browser: Chrome, name: str) -> str:
    """Choose a figure of the history by its first words; returns its chart, drawn."""
    select = Select(browser.find_element(By.ID, "view"))
    (option,) = (o for o in select.options if o.text.startswith(name))
    chart = str(option.get_attribute("value"))
    select.select_by_value(chart)
    place = browser.find_element(By.CSS_SELECTOR, "#history-chart .chart")
    until(browser, lambda: place.get_attribute("data-drawn") == chart)
    return chart


def test_another_figure_of_the_history_is_chosen(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "op" / "softmax.html")
    backward = points(chromium, "history-0")
    assert set(backward["x"]) == {*range(invented.COMMITS)}
    chart = choose_figure(chromium, "forward pass")
    forward = points(chromium, chart)
    assert len(forward["y"]) == len(backward["y"])
    assert forward["y"] != backward["y"]
    assert chromium.execute_script(RINGS, chart) == []  # planted in the backward pass


def test_the_history_as_a_table_follows_its_chart(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "op" / "softmax.html")
    folded = chromium.find_element(By.CSS_SELECTOR, "#history-chart details")
    chromium.execute_script("arguments[0].open = true", folded)
    heads = shown(chromium, "#history-table th")
    assert heads == ["commit", *SHOWN]
    rows = shown(chromium, "#history-table tr")[1:]
    assert [row[:12] for row in rows] == [
        invented.commit(n)[:12] for n in reversed(range(invented.COMMITS))
    ]
    path = '.legend[data-for="history"] input[value="torch_custom"]'
    chromium.find_element(By.CSS_SELECTOR, path).send_keys(Keys.SPACE)
    heads.remove("torch_custom")
    assert shown(chromium, "#history-table th") == heads


def test_charts_below_the_screen_are_drawn_without_scrolling(
    chromium: Chrome, site: Path
) -> None:
    chromium.get("about:blank")
    look(chromium)
    chromium.get((site / "op/softmax.html").as_uri())
    charts = chromium.find_elements(By.CLASS_NAME, "chart")
    assert charts[-1].location["y"] > 2 * 900  # a screen and more below the screen
    until(chromium, lambda: all(c.get_attribute("data-drawn") for c in charts))


def test_an_exact_result_is_drawn_though_the_axis_is_logarithmic(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "op" / "add.html")
    drawn = points(chromium, choose_figure(chromium, "worst ratio"))
    assert len(drawn["x"]) == invented.COMMITS * len(SHOWN)
    assert {text.split()[0] for text in drawn["detail"]} == {"0"}
    assert min(drawn["y"]) > 0


def test_ratios_measured_in_turn_are_sorted_by_keyboard(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "changes.html")
    place = "#compared-table th:nth-child(7)"
    focus_by_tab(chromium, chromium.find_element(By.CSS_SELECTOR, f"{place} button"))
    for order, ratios in (("ascending", ["0.910×", "1.310×"]), ("descending", None)):
        chromium.switch_to.active_element.send_keys(Keys.ENTER)
        head = chromium.find_element(By.CSS_SELECTOR, place)
        assert head.get_attribute("aria-sort") == order
        cells = chromium.find_elements(By.CSS_SELECTOR, place.replace("th:", "td:"))
        shown = [cell.text for cell in cells]
        assert shown == (ratios or ["1.310×", "0.910×"])


def shown_ops(browser: Chrome) -> list[str]:
    """The ops whose rows are seen."""
    return shown(browser, ".matrix tr[data-words] th a:not(.best)")


def test_the_matrix_shows_the_ops_that_have_every_word_of_the_field(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "index.html")
    field = chromium.find_element(By.CSS_SELECTOR, "input[type=search]")
    field.send_keys("Pooling  MAX")
    assert shown_ops(chromium) == ["max_pool2d"]
    assert shown(chromium, ".matrix .group") == ["pooling"]
    assert chromium.find_element(By.ID, "matrix-table-shown").text == (
        f"1 of {len(op_names())} shown. Show all"
    )
    field.send_keys("zzz")
    assert shown_ops(chromium) == []
    field.clear()
    field.send_keys(" ")
    assert len(shown_ops(chromium)) == len(op_names())


def test_without_scripts_all_ops_are_shown_and_groups_are_links(site: Path) -> None:
    page = html.parse(site / "index.html")
    (field,) = page.xpath("//input[@type='search']")
    assert field.getparent().get("hidden") is not None
    assert not page.xpath("//table[@id='matrix-table']//*[@hidden]")
    links = page.xpath("//nav[@aria-label='Groups of ops']/a/@href")
    assert [link[1:] for link in links] == page.xpath("//table//tbody/@id")


def test_the_matrix_says_its_verdicts_without_colour(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "index.html")
    rows = chromium.find_elements(By.CSS_SELECTOR, ".matrix tr[data-words]")
    assert len(rows) == len(op_names())
    (wrong,) = chromium.find_elements(By.CSS_SELECTOR, ".matrix td.one.wrong")
    assert wrong.text.split()[0] == "✗"


WRONG = '.matrix td.wrong[data-in="oneflow"]'  # the framework of the planted verdict


def test_a_framework_folds_into_its_worst_verdict_by_keyboard(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "index.html")
    head = chromium.find_element(By.CSS_SELECTOR, 'th[data-family="oneflow"] button')
    focus_by_tab(chromium, head)
    for expanded, seen in (("true", "one"), ("false", "fold"), ("true", "one")):
        assert head.get_attribute("aria-expanded") == expanded
        (cell,) = (
            c
            for c in chromium.find_elements(By.CSS_SELECTOR, WRONG)
            if c.is_displayed()
        )
        assert seen in cell.get_attribute("class").split()
        assert cell.text.split()[0] == "✗"
        head.send_keys(Keys.ENTER)


def test_on_a_phone_the_matrix_fits_and_unfolds_where_it_is_tapped(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "index.html", width=390)
    assert not shown(chromium, ".matrix td.one")
    fits = "return document.querySelector('.fits > .matrix') !== null"
    assert chromium.execute_script(fits)
    head = chromium.find_element(By.CSS_SELECTOR, 'th[data-family="torch"] button')
    scroll = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    chromium.execute_script(scroll, head)
    head.click()
    dialects = [h.split()[-1] for h in shown(chromium, ".matrix thead th.one")]
    assert dialects == [n[6:] for n in backend_names() if n.startswith("torch_")]
    for _ in range(2):  # folds all, and unfolds all
        chromium.find_element(By.CSS_SELECTOR, "[data-folds]").click()
    assert len(shown(chromium, ".matrix thead th.one")) == len(backend_names())
    assert not chromium.execute_script(fits), "it scrolls by itself, not the page"
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390


def test_the_legend_hides_a_framework(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "op" / "add.html")
    path = '.legend[data-for="times"] .family[aria-label="torch"] input'
    for box in chromium.find_elements(By.CSS_SELECTOR, path)[:2]:  # all, and the first
        box.send_keys(Keys.SPACE)
    runners = set(points(chromium, "times-float32-forward")["runner"])
    first = min(n for n in backend_names() if n.startswith("torch_"))
    assert {n for n in runners if n.startswith("torch_")} == {first}
    assert chromium.execute_script(
        "return document.querySelector(arguments[0]).indeterminate", path
    )


def test_what_is_chosen_is_in_the_address_and_comes_back(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "index.html")
    chromium.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("softmax")
    Select(chromium.find_element(By.CSS_SELECTOR, "[data-orders]")).select_by_value(
        "worst"
    )
    kept = chromium.current_url.partition("#")[2]
    assert set(kept.split("&")) == {"show=softmax", "order=worst"}
    before = shown_ops(chromium)
    assert before == ["softmax", "log_softmax"], "the wrong one comes first"
    visit(chromium, site / "index.html", f"#{kept}")
    assert shown_ops(chromium) == before
    (every,) = chromium.find_elements(By.CSS_SELECTOR, "#matrix-table-shown button")
    every.send_keys(Keys.ENTER)
    assert len(shown_ops(chromium)) == len(op_names())
    assert "show" not in chromium.current_url


def test_the_ops_return_to_their_groups(chromium: Chrome, site: Path) -> None:
    visit(chromium, site / "index.html")
    before = shown_ops(chromium)
    order = Select(chromium.find_element(By.CSS_SELECTOR, "[data-orders]"))
    order.select_by_value("slowest")
    assert shown_ops(chromium) != before
    order.select_by_value("")
    assert shown_ops(chromium) == before


def test_a_cell_tells_its_numbers_by_keyboard_and_leads_to_its_evidence(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "index.html")
    (cell,) = chromium.find_elements(By.CSS_SELECTOR, ".matrix td.one.wrong a")
    focus_by_tab(chromium, chromium.find_element(By.CSS_SELECTOR, ".matrix thead a"))
    script = "arguments[0].focus({focusVisible: true});"
    script += "return getComputedStyle(arguments[0], '::after').content"
    assert "not as expected" in chromium.execute_script(script, cell)
    cell.send_keys(Keys.ENTER)
    until(chromium, lambda: chromium.current_url.endswith("op/softmax.html#wrong"))


def test_the_backends_that_a_history_shows_are_in_the_address(
    chromium: Chrome, site: Path
) -> None:
    visit(chromium, site / "op" / "softmax.html", "#shown-history=numpy_manual")
    assert set(points(chromium, "history-0")["runner"]) == {"numpy_manual"}
