"""git is asked about one checkout, whatever the environment or a subject says."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from gradwatch.harness.commands.doctor import examine
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import surroundings
from gradwatch.harness.project.git import NotTrusted
from gradwatch.harness.project.paths import ROOT
from tests.histories import git as run
from tests.histories import repository

#: What ends a line for str.splitlines, and not for git.
SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1f", "\r"]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    repository(folder, ["square", "square"])
    return folder


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_a_subject_may_hold_what_ends_a_line(root, separator):
    run(root, "commit", "-q", "--allow-empty", "-m", f"one{separator}two")
    last = list(git.log(root).values())[-1]
    assert last.hash == git.commit_of("HEAD", root)
    assert last.subject == "onetwo"


def test_a_subject_has_no_say_over_the_terminal(root):
    evil = "\x1b]0;title\x07\x1b[31mred \u202e"
    run(root, "commit", "-q", "--allow-empty", "-m", f"{evil} tail")
    said = git.subject("HEAD", root), list(git.log(root).values())[-1].subject
    assert said == ("]0;title[31mred  tail",) * 2


@pytest.mark.parametrize("separator", ["\u2028", "\x85"], ids=ascii)
def test_a_tag_may_hold_what_ends_a_line(root, separator):
    run(root, "tag", f"one{separator}two")
    run(root, "tag", "v1.0")
    assert git.releases(root) == {"v1.0": git.commit_of("HEAD", root)}


def test_a_parent_comes_before_its_children_of_the_same_second(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.histories.time.time", lambda: 1.7e9)
    commits = repository(tmp_path / "quick", ["square"] * 8)
    for commit in commits:
        run(tmp_path / "quick", "branch", f"at-{commit}", commit)
    assert list(git.log(tmp_path / "quick")) == commits


def test_a_changed_file_may_hold_what_ends_a_line(root):
    name = "impls/ops/one\u2028\n two.py"
    (root / name).write_text("")
    assert git.changed_files(root) == [name]


@pytest.mark.parametrize(
    ("tag", "release"),
    [
        *[(tag, True) for tag in ("v1.2", "0.1.0", "v1.0rc1", "2026.11", "1!2.0")],
        *[(tag, False) for tag in ("1st-try", "2026-backup", "v1-try", "vv1.0", "v")],
        *[(tag, False) for tag in ("release-1.0", "1.0-try", "1.0/x", "nightly")],
    ],
)
def test_only_a_version_is_a_release(root, tag, release):
    run(root, "tag", tag, "HEAD^")
    assert git.newest_release(root) == (tag if release else "")
    assert list(git.releases(root)) == ([tag] if release else [])


def test_the_newest_release_is_the_last_before_head(root):
    run(root, "tag", "-a", "-m", "one", "v1.0", "HEAD^")
    run(root, "tag", "v2.0")  # HEAD itself
    run(root, "tag", "2026-backup", "HEAD^")
    assert git.newest_release(root) == "v1.0"
    assert git.releases(root)["v1.0"] == git.commit_of("HEAD^", root)


@pytest.mark.parametrize(
    "name",
    [
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
    ],
)
def test_a_hook_s_environment_names_no_other_repository(root, name, monkeypatch):
    expected = git.commit_of("HEAD", root)
    (root / "impls" / "ops" / "square.py").write_text("changed")
    monkeypatch.setenv(name, str(ROOT / ".git"))
    assert git.commit_of("HEAD", root) == expected
    assert git.changed_files(root) == ["impls/ops/square.py"]


@pytest.fixture
def foreign(monkeypatch):
    """Every checkout belongs to somebody else, in git's eyes."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def test_a_checkout_of_somebody_else_is_never_commit_nothing(root, foreign):
    told = f"{root} belongs to somebody else.* safe.directory {root}"
    with pytest.raises(NotTrusted, match=told):
        git.commits(root)
    with pytest.raises(NotTrusted):
        surroundings()
    (checkout,) = [f for f in examine(root) if f.name == "checkout"]
    assert checkout.state == "missing"
    assert checkout.mend == f"git config --global --add safe.directory {root}"


def test_a_command_in_a_checkout_of_somebody_else_is_refused_before_it_runs(foreign):
    call = [sys.executable, "-m", "gradwatch", "list", "ops"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "safe.directory" in done.stderr
    assert done.stderr.count("\n") == 1


CHECKING_OUT = """
import os, sys, time
from pathlib import Path
from gradwatch.harness.project import git
with git.checked_out("HEAD", Path(sys.argv[1])) as tree:
    print(tree, flush=True)
    time.sleep(60)
"""


def test_a_checkout_that_a_killed_process_left_is_removed_by_the_next(root):
    call = [sys.executable, "-c", CHECKING_OUT, str(root)]
    running = subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    tree = running.stdout.readline().strip()
    with git.checked_out("HEAD", root):
        assert os.path.isdir(tree), "that of a live process stays"
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert os.path.isdir(tree)
    with git.checked_out("HEAD", root):
        assert not os.path.exists(os.path.dirname(tree))


def test_a_checkout_has_the_files_of_its_commit_and_leaves_nothing(root):
    before = run(root, "status", "--porcelain")
    with git.checked_out("HEAD", root) as tree:
        names = run(root, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")
        found = [f for f in tree.rglob("*") if f.is_file() or f.is_symlink()]
        assert {str(f.relative_to(tree)) for f in found} == {*filter(None, names)}
    assert not tree.parent.exists()
    assert run(root, "status", "--porcelain") == before


def test_a_checkout_that_cannot_be_made_leaves_nothing(root, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(git.NoCommit), git.checked_out("no-such-commit", root):
        pass
    assert not [*tmp_path.glob("gradwatch-checkout-*")]


@pytest.mark.parametrize(
    ("remote", "pages"),
    [
        ("git@code.example:us/it.git", "https://code.example/us/it/commit/"),
        ("https://me:secret@code.example/us/it", "https://code.example/us/it/commit/"),
        ("ssh://git@code.example:22/a/b/c.git/", "https://code.example/a/b/c/commit/"),
        ("../elsewhere", ""),
        ("/srv/git/it.git", ""),
        ("javascript:alert(1)//code.example/us/it", ""),
        ("file:///srv/us/it.git", ""),
    ],
)
def test_the_pages_of_commits_are_those_of_the_remote_without_its_password(
    root, remote, pages
):
    assert git.commit_pages(root) == ""
    run(root, "remote", "add", "origin", remote)
    assert git.commit_pages(root) == pages
