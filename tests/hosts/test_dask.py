"""A Dask cluster as hosts: what `agree --on` writes is what one machine writes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from gradwatch.harness.agreement.suite import Asked
from gradwatch.harness.commands import agree as command
from gradwatch.harness.hosts import dask, dispatch, host
from gradwatch.harness.hosts.dask import Cluster
from gradwatch.harness.hosts.dispatch import agree_on_hosts
from gradwatch.harness.hosts.identity import Identity, identity
from gradwatch.harness.project import documents, machines
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.requested import Required
from tests.command_line import gradwatch

# Dask warns of a socket that it leaves open when a port is taken, as it tries the next.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RUN = ("--op", "square", "--regime", "normal")
NUMPY = ("--backend", "numpy_manual", "--backend", "numpy_graph", "--jobs", "1")


@pytest.fixture(scope="module")
def address():
    """A scheduler, and a worker with two threads, in this process."""
    import distributed

    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=":0",
    ) as cluster:
        yield cluster.scheduler_address.replace("tcp", "dask")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(
        command, "agree_on_hosts", partial(agree_on_hosts, patience=0.05)
    )


def comparable(text):
    """A document without its date, its seconds and where it was made."""
    content = json.loads(text)
    content["environment"].pop("date")
    content["summary"].pop("seconds")
    content["summary"].pop("machines", None)
    return content


def canonical(text):
    """Its records in order, too, which nothing fixes on one machine."""
    content = comparable(text)
    names = ("case", "device", "backend")  # the order of a backend's tensors stays
    content["records"].sort(key=lambda r: [r[name] for name in names])
    return content


def test_the_document_is_that_of_one_machine(address):
    there = gradwatch("agree", "--on", address, *RUN, *NUMPY, "--json", "-")
    assert there.returncode == 0, there.stderr
    here = gradwatch("agree", *RUN, *NUMPY, "--json", "-")
    assert json.loads(there.stdout)["summary"]["machines"] == [machines.machine_name()]
    assert canonical(there.stdout) == canonical(here.stdout)
    assert json.loads(here.stdout)["records"]


def test_another_commit_is_refused(address, monkeypatch):
    other = Identity("b" * 40, identity().files, identity().versions)
    monkeypatch.setattr(dispatch, "identity", lambda: other)
    done = gradwatch("agree", "--on", address, *RUN, *NUMPY)
    assert done.returncode == 3
    assert "is refused: it has" in done.stderr
    assert "and here is bbbbbbbbb" in done.stderr


def test_a_backend_that_no_host_offers_is_said(address, impatient, monkeypatch):
    monkeypatch.setattr(dask.Cluster, "offers", lambda self: {})
    done = gradwatch("agree", "--on", address, *RUN, *NUMPY)
    assert done.returncode == 3
    assert "no host offers numpy on cpu" in done.stderr
    assert "no host is there" in done.stderr


def test_no_scheduler_is_said(monkeypatch):
    monkeypatch.setattr(dask, "CONNECTING", 0.5)
    done = gradwatch("agree", "--on", "dask://127.0.0.1:9", *RUN)
    assert done.returncode == 3
    assert "no Dask scheduler answers at 127.0.0.1:9" in done.stderr


@pytest.mark.parametrize("where", ["slurm", "dask://"])
def test_an_address_that_is_none_is_a_wrong_call(where):
    done = gradwatch("agree", "--on", where, "--op", "square")
    assert done.returncode == 2
    assert "dask://HOST:PORT" in done.stderr


def test_a_page_of_this_machine_alone_is_a_wrong_call(tmp_path):
    page = tmp_path / "page.py"
    page.touch()
    done = gradwatch("agree", "--on", "dask://127.0.0.1:9", "--ops", page)
    assert done.returncode == 2
    assert "on no other host" in done.stderr


def test_a_host_whose_files_have_changed_judges_nothing(monkeypatch):
    before = Identity("", {}, {})
    monkeypatch.setattr(host, "_own", lambda: host.Offer(before, "m", {}))
    asked = Asked(ops=["square"], backends=["numpy_manual"])
    with pytest.raises(host.Changed, match="files have changed"):
        host.run(documents.packed(asked))


# A host is killed -------------------------------------------------------------------


@contextmanager
def cluster(workers, folder):
    """Processes that can be killed: the address, and the workers."""
    with ExitStack() as stack:
        file = folder / "scheduler.json"

        def started(what, *arguments):
            code = [sys.executable, "-m", f"distributed.cli.dask_{what}"]
            process = subprocess.Popen(
                [*code, "--no-dashboard", "--scheduler-file", str(file), *arguments],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        started("scheduler", "--host", "127.0.0.1", "--port", "0")
        options = ("--no-nanny", "--nthreads", "1", "--local-directory", str(folder))
        processes = [started("worker", *options) for _ in range(workers)]
        for _ in range(600):
            if file.exists() and file.stat().st_size:
                break
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"].removeprefix("tcp://"), processes


@pytest.mark.slow
def test_a_host_that_is_killed_at_any_moment_costs_nothing(tmp_path):
    asked = Asked(
        ops=["square", "mul", "exp2", "add", "sigmoid"],
        backends=["numpy_manual", "numpy_graph"],
        regimes=["normal", "ties"],
    )

    def written(hosts, moment=0, victim=None):
        def killed(done, total):
            if done == moment:
                os.kill(victim.pid, signal.SIGKILL)

        agreed, _ = agree_on_hosts(hosts, asked, asked.backends, killed)
        return documents.compact([agreed.records, agreed.summary()])

    with cluster(4, tmp_path) as (address, workers), Cluster(address) as hosts:
        while len(hosts.offers()) < 4:
            time.sleep(0.1)
        whole = written(hosts)
        for victim in workers[:3]:
            moment = random.randrange(1, 10)
            assert written(hosts, moment, victim) == whole, moment
            assert len(hosts.offers()) >= 1
        os.kill(workers[3].pid, signal.SIGKILL)
        with pytest.raises(Required, match="no host offers numpy on cpu"):
            agree_on_hosts(hosts, asked, asked.backends, patience=3.0)
