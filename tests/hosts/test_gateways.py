"""Machines over SSH as hosts: here a stand-in for ssh runs the same command at once."""

import os
import signal
from pathlib import Path

import pytest

from gradwatch.harness.agreement.remote import Asked, judge, judged
from gradwatch.harness.agreement.suite import Required
from gradwatch.harness.hosts import gateways
from gradwatch.harness.hosts.batches import put_in_order
from gradwatch.harness.hosts.dispatch import agreed_on, connected
from gradwatch.harness.hosts.gateways import Machines, command_on, specification
from gradwatch.harness.hosts.identity import Identity, identity
from gradwatch.harness.project import documents, records
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.child import Child
from tests.command_line import gradwatch

ASKED = Asked(
    ops=["square", "mul"],
    backends=["numpy_manual", "numpy_graph"],
    regimes=["normal"],
    jobs=1,
)

#: ssh is given its options, the host, and one command for the shell there.
SSH = """#!/bin/sh
echo "$$ $*" | cut -c1-200 >> "$0.log"
for command; do :; done
case "$*" in *nobody*) exit 255;; *broken*) exit 1;; esac
exec sh -c "exec $command"
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path, monkeypatch):
    """The stand-in; what it was called with is beside it."""
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Path(f"{program}.log")


def written(agreement):
    return documents.compact([agreement.records, agreement.summary()])


def test_a_host_is_named_as_ssh_names_it():
    there = specification("me@far/srv/checkout")
    assert " me@far//python=/srv/checkout/.venv/bin/python//" in there
    assert there.endswith("//chdir=/srv/checkout")
    assert specification("far").endswith(f"//chdir={ROOT}")


def test_the_verdicts_are_those_of_one_machine_also_if_another_is_killed(ssh):
    def killed(done, total):
        if done == 1:
            called = next(
                line for line in ssh.read_text().splitlines() if "far" in line
            )
            os.kill(int(called.split()[0]), signal.SIGKILL)

    with connected(f"ssh://here,me@far{ROOT}") as hosts:
        agreed, machines = agreed_on(hosts, ASKED, ASKED.backends, killed)
        assert [*hosts.offers()] == ["here"]
    with Child(judge) as child:
        here = judged(ASKED, child)
    put_in_order(here, ASKED)
    assert agreed.records
    assert written(agreed) == written(here)
    assert machines == [documents.machine_name()]
    assert "BatchMode=yes" in ssh.read_text()


ENDED = "the connection, or the Python of its checkout, has ended"


@pytest.mark.parametrize(
    ("host", "why"),
    [
        # What a write meets that comes after the end says nothing of how it ended.
        ("nobody", f"(ssh does not get there|{ENDED})"),
        ("broken", ENDED),
    ],
)
def test_a_host_that_does_not_answer_is_said(host, why):
    with pytest.raises(Required, match=f"host {host} does not run gradwatch: {why}"):
        Machines([host]).__enter__()


# A whole command --------------------------------------------------------------------

TIME = ("time", "--op", "square", "--size", "1024", "--dtype", "float32")
QUICK = ("--backend", "numpy_manual", "--budget", "0.05")


def test_times_are_those_of_the_machine_that_is_named(tmp_path):
    file = tmp_path / "there.json"
    place = ("--on", f"ssh://far{ROOT}")
    done = gradwatch(*TIME, *QUICK, "--first-look", *place, "--json", file)
    assert done.returncode == 0, done.stderr
    assert f"timed on {documents.machine_name()}" in done.stdout
    there = documents.read(file, records.TIME)
    assert {row.phase for row in there.records} == {"forward", "backward"}
    assert {(r.op, r.backend, r.dtype) for r in there.records} == {
        ("square", "numpy_manual", "float32")
    }


def test_what_the_other_machine_refuses_is_said_here():
    done = gradwatch("time", "--op", "square", "--size", "7", "--on", "ssh://far")
    assert done.returncode == 2
    assert "no such size" in done.stderr


def test_times_of_another_commit_are_refused(monkeypatch):
    other = Identity("b" * 40, identity().files, identity().versions)
    monkeypatch.setattr(gateways, "identity", lambda: other)
    done = gradwatch(*TIME, "--on", "ssh://far")
    assert done.returncode == 3
    assert "host far is refused: it has" in done.stderr


@pytest.mark.parametrize("address", ["ssh://a,b", "dask://a:1", "ssh://", "a"])
def test_times_of_no_machine_or_of_several_are_a_wrong_call(address):
    done = gradwatch(*TIME, "--on", address)
    assert done.returncode == 2
    assert "times are those of one machine" in done.stderr


def test_a_page_of_this_machine_alone_is_not_timed_elsewhere(tmp_path):
    page = tmp_path / "page.py"
    page.touch()
    done = gradwatch("time", "--ops", page, "--on", "ssh://far")
    assert done.returncode == 2
    assert "on no other host" in done.stderr


def test_a_machine_that_ends_while_it_times_is_said(ssh):
    (ssh.parent / "ssh").write_text(SSH.replace("exec sh", "timeout -s KILL 4 sh"))
    with pytest.raises(Required, match="host far"):
        command_on("far", ["time", "--budget", "600"], lambda line: None)
