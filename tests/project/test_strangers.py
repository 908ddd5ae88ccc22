"""Files and texts of strangers cost themselves alone, and publish nothing else."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest

from gradwatch.harness.dashboard.matrix import read_results
from gradwatch.harness.project import documents
from gradwatch.harness.project.markdown import cell


def test_a_gzip_file_that_expands_a_thousand_times_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b"[" + b"{}," * (10 << 20) + b"{}]"))
    with pytest.raises(documents.Unreadable, match="when expanded"):
        documents.bytes_of(bomb)


def test_a_document_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        documents.replace_file(tmp_path / "private.json", "{}")
    finally:
        os.umask(before)
    mode = (tmp_path / "private.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_link_out_of_the_results_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "agree.json"
    secret.write_text('{"secret": 1}')
    latest = tmp_path / "results" / "latest"
    latest.mkdir(parents=True)
    (latest / "agree.json").symlink_to(secret)
    (trouble,) = read_results(tmp_path / "results").troubles
    assert "leads out of the results" in trouble.why


@pytest.mark.parametrize("text", ["@org/team", "see #12", "by @someone"])
def test_a_cell_mentions_nobody(text: str) -> None:
    shown = cell(text)
    assert shown.replace("\u200b", "") == text
    assert "\u200b" in shown


def test_an_address_in_a_cell_stays() -> None:
    assert cell("a@b.c 1#2") == "a@b.c 1#2"
