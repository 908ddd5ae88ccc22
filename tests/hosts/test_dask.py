"""A Dask cluster as hosts: what `agree --on` writes is what one machine writes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from operator import attrgetter

import msgspec
import pytest
from msgspec import structs

from gradwatch.harness import hosts
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.hosts import agree_on_hosts, connected
from gradwatch.harness.project import documents, machines
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.requested import Required
from tests.command_line import gradwatch

# Dask warns of a socket that it leaves open when a port is taken, as it tries the next.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RUN = ("--op", "square", "--regime", "normal")
NUMPY = ("--backend", "numpy_manual", "--backend", "numpy_graph", "--jobs", "1")
RECORD = AgreeRecord(
    **dict.fromkeys(("op", "case", "regime", "dtype", "tensor"), "x"),
    backend="numpy_manual",
    framework="numpy",
    framework_version="2.0",
    device="cpu",
    verdict="agree",
)


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


def test_a_host_with_other_code_is_refused(address, monkeypatch):
    codes = iter(["files 1", "files 2"])
    monkeypatch.setattr(hosts, "code", lambda: next(codes))
    done = gradwatch("agree", "--on", address, *RUN, *NUMPY)
    assert done.returncode == 3
    assert "is refused" in done.stderr


def test_what_a_host_runs_differs_with_any_name_or_content_of_a_file(
    tmp_path, monkeypatch
):
    (tmp_path / "harness").mkdir()
    monkeypatch.setattr(hosts, "SOURCE", tmp_path)
    monkeypatch.setattr(hosts, "ROOT", tmp_path)
    found = list[str]()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("c.pyc", "3")):
        (tmp_path / "harness" / name).write_text(text)
        found.append(hosts.code())
    assert len({*found}) == 3
    assert found[2] == found[3]


def test_a_host_of_another_version_is_told_by_what_both_have(monkeypatch):
    asked = Asked(ops=["square"], backends=["numpy_manual"])
    monkeypatch.setattr(hosts, "_imported", lambda: "python 3.10.1")
    monkeypatch.setattr(hosts, "code", lambda: "python 3.10.1")
    sent = documents.packed(("python 3.11.7", asked))
    _, why, agreed = msgspec.msgpack.decode(hosts.run(sent), type=hosts.Answer)
    assert why == "it has python 3.10.1, and this machine python 3.11.7"
    assert agreed.records == []


def test_a_host_whose_files_have_changed_judges_nothing(monkeypatch):
    asked = Asked(ops=["square"], backends=["numpy_manual"])
    sent = documents.packed((hosts.code(), asked))
    hosts._imported()
    monkeypatch.setattr(hosts, "code", str)
    _, why, agreed = msgspec.msgpack.decode(hosts.run(sent), type=hosts.Answer)
    assert why == "files have changed since it started: start it again"
    assert agreed.records == []


def test_two_versions_of_a_framework_are_not_mixed():
    two = [structs.replace(RECORD, framework_version=v) for v in ("2.0", "2.1", "")]
    hosts._refuse_mixture(Agreement(two[1:]))
    with pytest.raises(Required, match=r"numpy is 2\.0 and 2\.1"):
        hosts._refuse_mixture(Agreement(two))


def test_no_host_is_said(monkeypatch):
    import distributed

    monkeypatch.setattr(hosts, "PATIENCE", 0.05)
    options = {"n_workers": 0, "host": "127.0.0.1", "dashboard_address": ":0"}
    with distributed.LocalCluster(processes=False, protocol="tcp", **options) as none:
        address = none.scheduler_address.replace("tcp", "dask")
        done = gradwatch("agree", "--on", address, *RUN, *NUMPY)
    assert done.returncode == 3
    assert "no host has come for 0.05 s" in done.stderr


def test_no_scheduler_is_said_and_that_it_is_not_protected(monkeypatch):
    monkeypatch.setattr(hosts, "CONNECTING", 0.5)
    done = gradwatch("agree", "--on", "dask://127.0.0.1:9", *RUN)
    assert done.returncode == 3
    assert "no Dask scheduler answers at 127.0.0.1:9" in done.stderr
    assert "dask:// is not protected" in done.stderr


def test_a_protected_address_is_asked_by_tls(monkeypatch):
    asked = []
    monkeypatch.setattr("dask.distributed.Client", lambda a, **_: asked.append(a))
    hosts.connected("tls://head:8786")
    assert asked == ["tls://head:8786"]


@pytest.mark.parametrize("where", ["slurm", "dask://", "ssh://a"])
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


class Answered:
    """A future whose result is an error."""

    def __init__(self, error):
        self.error = error

    def result(self):
        raise self.error


def test_an_op_that_ends_every_host_is_a_crash_of_that_op_alone():
    from distributed.scheduler import KilledWorker

    lost = KilledWorker("key", None, 3)
    machine, why, agreed = hosts._answer(Answered(lost), "mul")
    (record,) = agreed.records
    assert (machine, why, record.op, record.verdict) == ("", "", "mul", "crash")
    assert "hosts were lost with mul" in record.message


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CancelledError("scheduler"), "the hosts are gone: scheduler"),
        (ModuleNotFoundError("No module named 'gradwatch'"), "no host can judge mul"),
    ],
)
def test_what_no_host_answers_is_said(error, said):
    with pytest.raises(Required, match=said):
        hosts._answer(Answered(error), "mul")


class Hostile:
    """Runs code where it is unpickled: it makes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mknod, (self.file,)


def test_nothing_that_a_worker_returns_can_run_here(address, tmp_path):
    file = tmp_path / "ran"
    with connected(address) as client:
        for what in (Hostile, lambda file: [Hostile(file)], lambda file: file.encode()):
            returned = client.submit(what, str(file), pure=False)
            with pytest.raises(Required, match="no host can judge mul"):
                hosts._answer(returned, "mul")
    assert not file.exists()


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
        yield json.loads(file.read_text())["address"].replace("tcp", "dask"), processes


@pytest.mark.slow
def test_a_host_that_is_killed_at_any_moment_costs_nothing(tmp_path):
    asked = Asked(
        ops=["square", "mul", "exp2", "add", "sigmoid"],
        backends=["numpy_manual", "numpy_graph"],
        regimes=["normal", "ties"],
    )

    def written(client, moment=0, victim=None):
        def killed(done, total):
            if done == moment:
                os.kill(victim.pid, signal.SIGKILL)

        agreed, _ = agree_on_hosts(client, asked, killed)
        key = attrgetter("op", "case", "device", "backend")
        return documents.compact(sorted(agreed.records, key=key))

    with cluster(4, tmp_path) as (address, workers), connected(address) as client:
        client.wait_for_workers(4)
        whole = written(client)
        for victim in workers[:3]:
            moment = random.randrange(1, 5)
            assert written(client, moment, victim) == whole, moment
