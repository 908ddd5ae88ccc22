"""The recorded findings: a plain script a defect, and an index that names them all."""

import ast
import re
import statistics

import pytest

from gradwatch.harness.agreement import store

FINDINGS, TROUBLES = store.load()
SCRIPTS = sorted(store.FOLDER.glob("*.py"))
LINES = {script: len(script.read_text().splitlines()) for script in SCRIPTS}


def test_the_index_is_whole_and_names_each_script_and_no_other():
    assert TROUBLES == []
    assert {f.script for f in FINDINGS} == {script.name for script in SCRIPTS}
    assert len({f.id for f in FINDINGS}) == len(FINDINGS)


def test_scripts_are_short():
    assert max(LINES.values()) <= 60
    assert statistics.median(LINES.values()) <= 25
    assert sum(LINES.values()) + len(FINDINGS) <= 5000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_plain_code_of_its_framework(script):
    text = script.read_text()
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (getattr(node, "module", None) or node.names[0].name,)
    }
    framework = script.name.split("-")[1]
    assert framework in names
    assert names <= {framework, "jax", "numpy", "subprocess", "sys", "math", "scipy"}
    assert "sys.exit" in text or "-error" in script.name
    assert not re.search("class |harness|impls", text)


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_script_is_named_after_the_framework_that_fails(finding):
    assert finding.record.framework == finding.script.split("-")[1]
