"""The other side of the wire answers whatever it is asked, and goes on."""

import json
import platform
import subprocess
import sys

import numpy as np
import pytest

from gradwatch.harness import endpoint
from gradwatch.harness.endpoint import serve
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.project.paths import SOURCE
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import decoded, encoded
from gradwatch.harness.workers.pool import Task
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Problem
from tests.asked import answer


class Channel(list):
    """What is asked, in order; what is answered is kept."""

    def __init__(self, *requests):
        super().__init__(
            encoded({"request": request, "framework": "numpy"}) for request in requests
        )
        self.answers = []

    def recv_bytes(self):
        if not self:
            raise EOFError
        return self.pop(0)

    def send_bytes(self, reply):
        self.answers.append(decoded(reply))


def test_an_answer_that_cannot_be_sent_is_an_error(monkeypatch):
    monkeypatch.setitem(endpoint.HANDLERS, "odd", lambda request: {"odd": object()})
    channel = Channel("odd", "probe")
    serve(channel, "numpy")
    assert [reply["kind"] for reply in channel.answers] == ["error", "result"]


def test_the_probe_tells_versions_devices_and_threads():
    facts = answer({"request": "probe", "framework": "numpy"})
    assert facts["python"] == platform.python_version()
    assert facts["numpy"] == facts["version"] == np.__version__
    assert facts["backends"]["numpy_manual"] == {
        "error": "",
        "version": np.__version__,
        "devices": {"cpu": "", "cuda": "NumPy runs only on the CPU"},
    }


def test_pytorch_makes_its_first_backward_before_its_functions_are_noted(monkeypatch):
    """It imports sympy then, which must be neither timed nor left unfrozen."""
    torch, order = pytest.importorskip("torch"), []
    given = torch.autograd.grad

    def grad(outputs, inputs, grad_outputs):
        order.append("backward")
        return given(outputs, inputs, grad_outputs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.setattr(integrity, "remember", order.append)
    answer({"request": "probe", "framework": "torch"})
    assert order == ["backward", "torch"]
    assert "sympy" in sys.modules


def test_the_probe_of_one_broken_backend_tells_of_the_others(monkeypatch):
    def load(name, load=catalogue.load_backend):
        if name == "numpy_manual":
            raise AttributeError("module 'numpy' has no attribute 'float_'")
        return load(name)

    monkeypatch.setattr(catalogue, "load_backend", load)
    backends = answer({"request": "probe", "framework": "numpy"})["backends"]
    assert backends["numpy_graph"]["error"] == ""
    assert "no attribute 'float_'" in backends["numpy_manual"]["error"]


COLOURED = "\x1b[1m\x1b[38;2;255;000;000mError\x1b[0m: no\x00\x07 kernel"


def test_colours_and_control_characters_do_not_come_through(monkeypatch):
    """OneFlow's messages have them, and XML cannot."""

    def fail(request):
        raise RuntimeError(COLOURED)

    monkeypatch.setitem(endpoint.HANDLERS, "fail", fail)
    reply = answer({"request": "fail"})
    assert reply["message"] == "RuntimeError: Error: no kernel"


@pytest.mark.parametrize("text", ["a\nb", "", "x"])
def test_an_error_is_told_in_one_line(monkeypatch, text):
    def fail(request):
        raise RuntimeError(text)

    monkeypatch.setitem(endpoint.HANDLERS, "fail", fail)
    reply = answer({"request": "fail"})
    first = text.partition("\n")[0]
    assert reply["message"] == (f"RuntimeError: {first}" if first else "RuntimeError")


@pytest.mark.parametrize("missing", ["msgspec", "psutil", "click", "scipy"])
def test_a_worker_needs_no_library_of_the_main_process(missing):
    """OneFlow's interpreter has none of these."""
    code = f"import sys; sys.modules[{missing!r}] = None; import gradwatch"
    for module in ("endpoint", "workers.evaluate", "selftest.examine"):
        code += f", gradwatch.harness.{module}"
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


STARTED = """
import json, sys
from gradwatch.harness import endpoint
from gradwatch.harness.workers import arrays, integrity
asked = {"request": "probe", "framework": "numpy"}
assert arrays.decoded(endpoint.answer(asked))["kind"] == "result"
rooms = {".".join(name.split(".")[:3]) for name in sys.modules}
print(json.dumps([sorted(rooms), [":".join(k) for k in integrity._originals]]))
"""


def test_a_worker_notes_the_clock_before_it_reads_a_page_and_imports_no_judge():
    code = [sys.executable, "-c", STARTED]
    done = subprocess.run(code, cwd=SOURCE, capture_output=True, check=True)
    rooms, noted = json.loads(done.stdout)
    assert not {"gradwatch.harness.selftest", "gradwatch.harness.judging"} & {*rooms}
    assert {
        "gradwatch.harness.timing.handlers:sample",
        "gradwatch.harness.timing.timers:HostTimer",
    } < {*noted}


# A GPU whose errors arrive late -------------------------------------------------------

FAILING = """
@op.implement("custom")
class Square:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # nobody waits for it
            torch.cuda.played.launch("fails", 1.0)
            torch.cuda.played.fail("an illegal memory access was encountered")
        return 2 * x * dy
"""


class Requests(Channel):
    """What is asked of a worker, and what it answers."""

    def __init__(self, tasks):
        super().__init__()
        self += [encoded({"request": "evaluate", **t.payload()}) for t in tasks]

    def send_bytes(self, reply):
        self.answers.append(decoded(reply)["kind"])


@pytest.fixture
def two_tasks(tmp_path):
    """One whose kernel fails after its last wait, and an honest one."""
    pytest.importorskip("torch")
    catalogue.load_backend("torch_custom")
    page = tmp_path / "late.py"
    head = 'op = Op("late", inputs="x", cases=[Case("5", x=(5,))])'
    imports = "import torch\nfrom gradwatch.impls.contract import Case, Op\n"
    page.write_text(f"{imports}{head}\n{FAILING}")
    ops = [catalogue.load_op(name) for name in (str(page), "square")]
    problems = [
        Problem(op, {"x": np.ones(5)}, [np.ones(5)], dtype="float32") for op in ops
    ]
    names = [str(page), "square"]
    return [
        Task(Trial(name, "", "", problem), "torch_custom", "cuda")
        for name, problem in zip(names, problems, strict=True)
    ]


def test_a_late_error_of_a_gpu_leaves_its_own_request_without_an_answer(two_tasks):
    """So the crash is of that one, and the next is asked of another worker."""
    from tests.cuda_stand_in import Device, installed

    channel = Requests(two_tasks)
    with (
        installed(Device()),
        pytest.raises(endpoint.DeviceLost, match="illegal memory access"),
    ):
        serve(channel, "torch")
    assert channel.answers == []
    fresh = Requests(two_tasks[1:])
    with installed(Device()):
        serve(fresh, "torch")
    assert fresh.answers == ["result"]


def test_without_the_wait_the_next_request_would_be_blamed(two_tasks, monkeypatch):
    """The planted missing wait: the op that fails has a result, another an error."""
    from gradwatch.harness.workers import evaluate
    from gradwatch.impls.backends._torchlike import TorchLikeStep
    from tests.cuda_stand_in import Device, installed

    monkeypatch.setattr(endpoint, "_confirm_device", lambda: None)
    monkeypatch.setattr(TorchLikeStep, "wait", lambda self: None)
    monkeypatch.setattr(evaluate, "_swept", lambda *of: {})
    late = two_tasks[0]
    once = {"request": "once", **late.payload()}
    backend = catalogue.load_backend("torch_custom")

    def once_run(asked):
        return evaluate._run(backend, evaluate.problem_of(asked))[1]

    monkeypatch.setitem(endpoint.HANDLERS, "once", once_run)
    device = Device()
    with installed(device):
        assert answer(once)["kind"] == "result"
        device.host += 2.0  # by now the kernel has failed
        blamed = answer({"request": "evaluate", **two_tasks[1].payload()})
    assert blamed["kind"] == "error"
    assert "illegal memory access" in blamed["message"]


def test_a_gpu_that_nobody_uses_is_not_started(monkeypatch):
    """Its context takes a second and half a gigabyte."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("waited"))
    assert answer({"request": "probe", "framework": "numpy"})["kind"] == "result"
