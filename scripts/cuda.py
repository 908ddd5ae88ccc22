"""Runs all checks that need a GPU, and collects their results in one folder.

    .venv/bin/python scripts/cuda.py         (or `make cuda`)

Runs the steps of `steps` one after the other. After a step that fails or takes too long
the others still run, except after the first one: without a device that PyTorch can use
none of them can pass. results/cuda/DATE gets the documents, the output of each step,
and summary.md, which is rewritten after each step.

Exit code: 0 if every step has passed, 1 if not, 3 without a GPU, 130 after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from junitparser import JUnitXml

from gradwatch.harness.project.documents import replace_file, surroundings
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.markdown import table

ROOT = Path(__file__).resolve().parent.parent
TOLD = 40  # lines of the summary about one step
STREAMS = "tests/timing/test_stream_attacks.py"

#: Code that prints the device's properties, and fails where PyTorch cannot use it.
ABOUT = """
import torch
print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
if not torch.cuda.is_available():
    raise SystemExit("PyTorch sees no CUDA device: a CPU build, or no driver for it")
about = torch.cuda.get_device_properties(0)
l2 = getattr(about, "L2_cache_size", 0) >> 20
print(f"{about.name}, {about.total_memory >> 20} MiB, L2 {l2} MiB")
print(f"capability {about.major}.{about.minor}, cuDNN {torch.backends.cudnn.version()}")
print((torch.ones(8, device="cuda") * 2).sum().item())
"""


@dataclass
class Step:
    """A command, its time limit, and its result."""

    name: str
    command: list[str]
    minutes: float
    variables: dict[str, str] = field(default_factory=dict)
    result: str = "not run"
    seconds: float = 0.0


def steps(root: Path, folder: Path) -> list[Step]:
    """All steps in their order; together they take two hours at most."""
    python, gradwatch, asv = (
        str(root / ".venv" / "bin" / name) for name in ("python", "gradwatch", "asv")
    )
    pytest = [python, "-m", "pytest", "-m", "cuda", "-n", "0"]
    agree = [gradwatch, "agree", "--device", "cuda"]
    agree += ["--require", "torch_autograd"]
    precisions = ("float64", "float32", "float16", "bfloat16")
    four = [word for name in precisions for word in ("--dtype", name)]
    file = {name: str(folder / name) for name in FILES}
    return [
        Step("device", [python, "-c", ABOUT], 3),
        Step("doctor", [gradwatch, "doctor", "--json", file["doctor.json"]], 5),
        Step(
            "tests",
            [*pytest, f"--junitxml={file['tests.xml']}", f"--ignore={STREAMS}"],
            10,
        ),
        Step(
            "agree",
            [*agree, *four, "--json", file["agree.json.gz"]],
            30,
            variables={"GRADWATCH_TF32": "0"},
        ),
        Step(
            "agree-tf32",
            [*agree, "--dtype", "float32", "--json", file["agree-tf32.json.gz"]],
            15,
            variables={"GRADWATCH_TF32": "1"},
        ),
        Step("attacks", [*pytest, f"--junitxml={file['attacks.xml']}", STREAMS], 10),
        Step(
            "time",
            [gradwatch, "time", "--device", "cuda", "--json", file["time.json.gz"]],
            30,
        ),
        Step("history", [asv, "run", "HEAD^!"], 30),
    ]


#: The documents of the steps, by the name of the step.
FILES = (
    "doctor.json",
    "tests.xml",
    "agree.json.gz",
    "agree-tf32.json.gz",
    "attacks.xml",
    "time.json.gz",
)


def driver() -> str:
    """The lines of nvidia-smi, one for each device; "" where it is not installed."""
    fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(query, stdout=subprocess.PIPE, text=True, timeout=60)
        return done.stdout.strip()
    return ""


def machine(devices: str) -> str:
    """The name of the machine by its GPU, such as h100-80gb-hbm3-16core."""
    name = devices.partition(",")[0].lower().replace("nvidia", "")
    words = re.findall(r"[a-z0-9]+", name) or ["gpu"]
    return "-".join([*words, f"{os.cpu_count()}core"])


# Running --------------------------------------------------------------------------


def run(step: Step, folder: Path, root: Path) -> None:
    """Run a step, with its output in its log.

    Its own child processes end with it: on Linux ours end with their parents.

    Raises:
        KeyboardInterrupt: By the user; the step has ended by then.
    """
    begun = time.monotonic()
    with (folder / f"{step.name}.log").open("wb") as log:
        try:
            done = subprocess.run(
                step.command,
                cwd=root,
                env={**os.environ, **step.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=60 * step.minutes,
            )
            code = done.returncode
            step.result = "passed" if code == 0 else f"failed: exit code {code}"
        except OSError as error:
            step.result = f"failed: {error.strerror}"
        except subprocess.TimeoutExpired:
            step.result = f"failed: ended after {step.minutes:g} minutes"
        except KeyboardInterrupt:
            step.result = "interrupted"
            raise
        finally:
            step.seconds = time.monotonic() - begun
    if step.result == "passed" and tested_nothing(step, folder):
        step.result = "failed: no test ran"


# The summary ----------------------------------------------------------------------


def summary(done: list[Step], folder: Path, facts: list[str]) -> str:
    """The summary: the steps, and the end of the log of each failed one."""
    counts = Counter(step.result.partition(":")[0] for step in done)
    told = ", ".join(f"{count} {result}" for result, count in counts.items())
    rows = [(s.name, s.result, f"{s.seconds / 60:.1f}") for s in done]
    lines = ["# The first hour on a GPU", "", f"Steps: {told}.", "", *facts, ""]
    lines.append(table(["step", "result", "minutes"], rows))
    for step in done:
        log = folder / f"{step.name}.log"
        if log.exists() and (step.result != "passed" or step.name == "device"):
            text = log.read_text(encoding="utf-8", errors="replace").splitlines()
            lines += ["", f"## {step.name}: {step.result}"]
            lines += ["", "```", *text[-TOLD:], "```"]
    return "\n".join(lines) + "\n"


def tested_nothing(step: Step, folder: Path) -> bool:
    """Whether a step of tests has run none: all were skipped, or there is no report."""
    file = folder / f"{step.name}.xml"
    if file.name not in FILES:
        return False
    suites = JUnitXml.fromfile(str(file)) if file.exists() else ()
    return not any(not case.result for suite in suites for case in suite)


# ----------------------------------------------------------------------------------


def main(root: Path = ROOT, present: bool | None = None) -> int:
    """Run all steps and write the folder; return the exit code described above."""
    if not (has_cuda() if present is None else present):
        print("make cuda: no GPU on this machine (no /dev/nvidia*): nothing was run")
        return 3
    devices = driver()
    name = os.environ.setdefault("GRADWATCH_MACHINE", machine(devices))
    now = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    folder = root / "results" / "cuda" / now
    folder.mkdir(parents=True)
    about = surroundings()
    changed = " (files differ from it)" if about.dirty else ""
    facts = [f"- machine {name}, {sys.platform}, commit {about.commit}{changed}"]
    facts += [f"- {line}" for line in devices.splitlines()]
    facts += [f"- {n}={v}" for n, v in os.environ.items() if n.startswith("CUDA_")]
    every, code = steps(root, folder), 0
    try:
        for number, step in enumerate(every, 1):
            place = f"[{number}/{len(every)}] {step.name}"
            print(f"{place} (at most {step.minutes:g} minutes)", flush=True)
            run(step, folder, root)
            print(f"{place}: {step.result}", flush=True)
            replace_file(folder / "summary.md", summary(every, folder, facts))
            code = code if step.result == "passed" else 1
            if code and step.name == "device":
                code = 3
                break
    except KeyboardInterrupt:
        code = 130
    recorded = root / "results" / "asv" / name
    if recorded.is_dir():
        shutil.copytree(recorded, folder / "asv" / name)
    replace_file(folder / "summary.md", summary(every, folder, facts))
    print(f"bring back {folder}; read {folder / 'summary.md'} first", flush=True)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped: say so, too
    sys.exit(main())
