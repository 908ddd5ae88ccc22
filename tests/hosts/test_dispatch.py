"""Batches that are lost with their host, hosts that come late, and what nobody has."""

from concurrent.futures import Future

import msgspec
import pytest

from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.hosts import dispatch
from gradwatch.harness.hosts.dispatch import agree_on_hosts
from gradwatch.harness.hosts.identity import Identity
from gradwatch.harness.project.documents import packed
from gradwatch.harness.project.requested import Required
from tests.hosts.test_batches import SAME, asked, offer, record


class Gone(Exception):
    """No host can be reached."""


class Fatal(Exception):
    """A batch took its hosts with it."""


class Scripted:
    """Hosts that answer as `act` says: with verdicts, an error, or not at all."""

    gone, fatal = (Gone,), (Fatal,)

    def __init__(self, act, *states):
        self.act, self.states, self.asked = act, list(states), []

    def offers(self):
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def submit(self, content, able):
        batch = msgspec.msgpack.decode(content, type=Asked)
        name = f"{batch.ops} {batch.dtypes}"
        self.asked.append(name)
        future = Future()
        done = self.act(batch, self.asked.count(name))
        if isinstance(done, Exception):
            future.set_exception(done)
        elif done is not None:
            future.set_result(packed(done))
        return future


def answered(batch):
    (op,), (dtype,) = batch.ops, batch.dtypes
    return "cpu-2core", Agreement([record(op, dtype)])


RUN = asked("numpy_manual")
HERE = {"a": offer(cpu=["numpy"])}
CASES = [f"{op}[{dtype}]" for op in RUN.ops for dtype in RUN.dtypes]


@pytest.fixture(autouse=True)
def same_code(monkeypatch):
    monkeypatch.setattr(dispatch, "identity", lambda: SAME)
    monkeypatch.setattr(dispatch, "LOOK", 0.01)


def cases(agreed):
    return [r.case for r in agreed.records]


def test_hosts_that_are_gone_are_said():
    with pytest.raises(Required, match="the hosts are gone"):
        agree_on_hosts(Scripted(lambda batch, time: Gone(), HERE), RUN)


def test_a_batch_that_ends_every_host_is_a_crash_of_its_op_alone():
    def act(batch, time):
        bad = batch.ops == ["mul"] and batch.dtypes == ["float32"]
        return Fatal() if bad else answered(batch)

    agreed, _ = agree_on_hosts(Scripted(act, HERE), RUN)
    assert cases(agreed) == [*CASES[:2], "mul[float64]", "mul[page]"]
    assert agreed.records[-1].verdict == "crash"
    assert "hosts were lost with mul" in agreed.records[-1].message
    assert agreed.exit_code == 1


def test_a_batch_is_taken_back_from_a_host_that_has_gone():
    def act(batch, time):
        return answered(batch) if time > 1 or len(hosts.asked) > 1 else None

    later = {"b": offer(cpu=["numpy"])}
    hosts = Scripted(act, HERE, HERE, later)
    agreed, _ = agree_on_hosts(hosts, RUN)
    assert cases(agreed) == CASES
    assert len(hosts.asked) == len(CASES) + 1


def test_a_batch_is_restricted_to_hosts_that_offer_what_it_needs():
    both = HERE | {"b": offer(cpu=["numpy", "torch"])}
    sent = []

    class Noted(Scripted):
        def submit(self, content, able):
            sent.append({*able})
            return super().submit(content, able)

    def act(batch, time):
        return answered(batch)

    agree_on_hosts(Noted(act, both), asked("torch_custom"))
    agree_on_hosts(Noted(act, both), asked("numpy_manual"))
    assert sent == [{"b"}] * 4 + [set()] * 4


@pytest.mark.parametrize(
    ("there", "said"),
    [({}, "no host is there"), (HERE, "a offers numpy on cpu")],
    ids=["no host", "another host"],
)
def test_what_no_host_offers_is_said(there, said):
    hosts = Scripted(lambda batch, time: answered(batch), there)
    run = asked("numpy_manual", "torch_custom")
    with pytest.raises(Required, match="no host offers torch on cpu") as raised:
        agree_on_hosts(hosts, run, {"torch_custom"}, patience=0.05)
    assert said in str(raised.value)


def test_what_every_host_has_lost_is_said():
    hosts = Scripted(lambda batch, time: None, HERE, HERE, {})
    with pytest.raises(Required, match=r"no host offers numpy on cpu, for 0\.05 s"):
        agree_on_hosts(hosts, RUN, patience=0.05)


def test_a_backend_that_nobody_named_is_missing_without_a_wait():
    hosts = Scripted(lambda batch, time: answered(batch), HERE)
    run = asked("numpy_manual", "torch_custom")
    agreed, _ = agree_on_hosts(hosts, run, patience=600)
    assert agreed.missing == {"torch_custom": "no host offers torch on cpu"}
    assert cases(agreed) == CASES


def test_a_host_that_comes_late_is_used():
    hosts = Scripted(lambda batch, time: answered(batch), {}, {}, HERE)
    assert cases(agree_on_hosts(hosts, RUN, patience=600)[0]) == CASES


OTHER = Identity("b" * 40, SAME.files, SAME.versions)


def test_a_host_of_another_commit_is_refused_before_it_judges():
    other = offer(cpu=["numpy"])
    other.identity = OTHER
    hosts = Scripted(lambda batch, time: answered(batch), {"far": other})
    with pytest.raises(Required, match="far is refused: it has bbbbbbbbb checked out"):
        agree_on_hosts(hosts, RUN)
    assert hosts.asked == []


def test_a_host_of_another_commit_that_comes_later_is_refused():
    other = offer(cpu=["numpy"])
    other.identity = OTHER
    hosts = Scripted(lambda batch, time: answered(batch), HERE, HERE | {"gpu": other})
    with pytest.raises(Required, match=r"gpu is refused: it has bbbbbbbbb"):
        agree_on_hosts(hosts, RUN)
    assert hosts.asked == []


@pytest.mark.parametrize("address", ["", "slurm", "dask://", "ssh://a"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="dask://HOST:PORT"):
        dispatch.connected(address)
