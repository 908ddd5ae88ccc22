#!/usr/bin/env python3
"""The first hour on a GPU: all checks that need one, and one folder to bring back.

    python3 scripts/cuda.py         (or `make cuda`)

Runs the steps of `steps` one after the other. A step that fails or takes too long does
not keep the others from running; without the environments or a device PyTorch can use
nothing else makes sense. results/cuda/DATE gets the documents, the output of each step,
and summary.md, which is written anew after each step.

Exit code: 0 if every step has passed, 1 if not, 3 without a GPU, 130 after Ctrl-C.
Standard library only, Python 3.8 or later: it begins before there is an environment.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENDING = 10.0  # seconds for a step to end after it has been asked to
TOLD = 20  # lines of the summary about one step
STREAMS = "tests/timing/test_stream_attacks.py"

#: What the device says of itself; it fails where PyTorch cannot use it.
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
    """A command, how long it may take, and what has become of it."""

    name: str
    command: list[str]
    minutes: float
    needed: bool = False  # without it no other makes sense
    variables: dict[str, str] = field(default_factory=dict)
    result: str = "not run"
    seconds: float = 0.0


def steps(root: Path, folder: Path) -> list[Step]:
    """All of them, in their order; the longest would take about two hours together."""
    bin_folder = root / ".venv" / "bin"
    python, gradwatch, asv = (
        str(bin_folder / name) for name in ("python", "gradwatch", "asv")
    )
    pytest = [python, "-m", "pytest", "-m", "cuda", "-n", "0"]
    agree = [gradwatch, "agree", "--device", "cuda", "--fresh"]
    agree += ["--require", "torch_autograd"]
    precisions = ("float64", "float32", "float16", "bfloat16")
    four = [word for name in precisions for word in ("--dtype", name)]
    file = {name: str(folder / name) for name in FILES}
    environments = [sys.executable, str(root / "scripts" / "environments.py")]
    return [
        Step("environments", environments, 30, needed=True),
        Step("device", [python, "-c", ABOUT], 3, needed=True),
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


# The machine ----------------------------------------------------------------------


def has_gpu() -> bool:
    """Whether there is a CUDA driver, found without starting it.

    The rule of harness/history/measure.py, which cannot be imported before there is an
    environment.
    """
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def driver() -> str:
    """What nvidia-smi says of each device, a line each; "" where it is not there."""
    fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(query, stdout=subprocess.PIPE, text=True, timeout=60)
        return done.stdout.strip()
    return ""


def machine(devices: str) -> str:
    """A plain name, such as h100-80gb-hbm3-16core."""
    name = devices.partition(",")[0].lower().replace("nvidia", "")
    words = re.findall(r"[a-z0-9]+", name) or ["gpu"]
    return "-".join([*words, f"{os.cpu_count()}core"])


def git(root: Path, *arguments: str) -> str:
    """What git says in a line, or ""."""
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return done.stdout.strip()
    return ""


# Running --------------------------------------------------------------------------


def run(step: Step, folder: Path, root: Path) -> None:
    """Run a step; its output goes to the terminal and to its log.

    Raises:
        KeyboardInterrupt: By the user; the step has ended by then.
    """
    begun, late = time.monotonic(), threading.Event()
    with open(str(folder / f"{step.name}.log"), "wb") as log:
        try:
            process = subprocess.Popen(
                step.command,
                cwd=str(root),
                env={**os.environ, **step.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this script to pass on
            )
        except OSError as error:
            log.write(f"{error}\n".encode())
            step.result = f"failed: {error.strerror}"
            return
        timer = threading.Timer(60 * step.minutes, too_late, [process, late])
        timer.start()
        try:
            for line in process.stdout or ():
                log.write(line)
                log.flush()
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
            code = process.wait()
            step.result = "passed" if code == 0 else f"failed: exit code {code}"
            if late.is_set():
                step.result = f"failed: ended after {step.minutes:g} minutes"
        except KeyboardInterrupt:
            step.result = "interrupted"
            end(process)
            raise
        finally:
            timer.cancel()
            if process.stdout:
                process.stdout.close()
            step.seconds = time.monotonic() - begun


def too_late(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    """End a step that has had its time."""
    late.set()
    end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a step and all it has started to end, as Ctrl-C would; then end them."""
    for number, patience in ((signal.SIGINT, ENDING), (signal.SIGKILL, ENDING)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


# The summary ----------------------------------------------------------------------


def summary(done: list[Step], folder: Path, facts: list[str]) -> str:
    """What a person reads first: the steps, and of each what is to be looked at."""
    counts = Counter(step.result.partition(":")[0] for step in done)
    told = ", ".join(f"{count} {result}" for result, count in counts.items())
    lines = ["# The first hour on a GPU", "", f"Steps: {told}.", "", *facts, ""]
    lines += ["| step | result | minutes |", "|---|---|---|"]
    lines += [f"| {s.name} | {s.result} | {s.seconds / 60:.1f} |" for s in done]
    for step in done:
        about = details(step, folder)
        if about:
            lines += ["", f"## {step.name}: {step.result}", "", *about]
    return "\n".join(lines) + "\n"


def details(step: Step, folder: Path) -> list[str]:
    """From the document of a step; else, if it has not passed, the end of its log."""
    about: list[str] = []
    for name in FILES:
        file = folder / name
        if name.partition(".")[0] == step.name and file.exists():
            try:
                about += of_tests(file) if file.suffix == ".xml" else of_document(file)
            except (OSError, ValueError, KeyError, TypeError, ET.ParseError) as error:
                about.append(f"- {name} cannot be read: {error}")
    log = folder / f"{step.name}.log"
    if log.exists() and (step.name == "device" or step.result != "passed"):
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()
        about += ["", "```", *text[-TOLD:], "```"]
    return about


def tested_nothing(step: Step, folder: Path) -> bool:
    """Whether a step of tests has run none of them: all were skipped, or none wrote."""
    files = [folder / name for name in FILES if name == f"{step.name}.xml"]
    return any(
        not file.exists() or " passed" not in of_tests(file)[0] for file in files
    )


def of_tests(file: Path) -> list[str]:
    """The counts of a test report, and the names of those that failed or skipped."""
    cases = list(ET.parse(str(file)).getroot().iter("testcase"))
    kinds = {case: {part.tag for part in case} for case in cases}
    marks = ("failure", "error", "skipped")
    counts = Counter(next((m for m in marks if m in kinds[c]), "passed") for c in cases)
    lines = ["- " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))]
    for case in cases:
        for part in case:
            if part.tag in marks:
                why = (part.get("message") or "").splitlines() or [""]
                lines.append(f"- {part.tag}: {case.get('name')}: {why[0][:200]}")
    return lines[: TOLD + 1]


def of_document(file: Path) -> list[str]:
    """The counts of a document, and what in it is not as expected."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(str(file), "rt", encoding="utf-8") as text:
        document = json.load(text)
    about, records = document["summary"], document["records"]
    kinds = {name: n for name, n in about.items() if isinstance(n, (int, float))}
    lines = [f"- {len(records)} records; " + json.dumps(kinds)]
    lines += [
        f"- {json.dumps(about[n])}" for n in ("verdicts", "missing") if n in about
    ]
    lines += [f"- not timed: {n}: {why}" for n, why in about.get("untimed", {}).items()]
    passing = ("agree", "vacuous", "convention", "imprecise", "unsupported")
    for one in records:
        verdict = one.get("verdict", "agree")
        if verdict not in (*passing, one.get("expected_verdict", "agree")):
            where = f"{one['case']} {one['backend']} {one['tensor']}"
            lines.append(f"- {verdict}: {where}: {one['message'][:200]}")
    more = len(lines) - 2 * TOLD
    if more > 0:
        lines[2 * TOLD :] = [f"- and {more} more, in {file.name}"]
    return lines


# ----------------------------------------------------------------------------------


def main(root: Path = ROOT, present: bool | None = None) -> int:
    """Run all steps and write the folder; see above for the exit code."""
    if not (has_gpu() if present is None else present):
        print("make cuda: no GPU on this machine (no /dev/nvidia*): nothing was run")
        return 3
    devices = driver()
    name = os.environ.setdefault("GRADWATCH_MACHINE", machine(devices))
    folder = (
        root / "results" / "cuda" / time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    )
    folder.mkdir(parents=True)
    commit = git(root, "rev-parse", "HEAD")
    changed = " (files differ from it)" if git(root, "status", "--porcelain") else ""
    facts = [f"- machine {name}, {sys.platform}, commit {commit}{changed}"]
    facts += [f"- {line}" for line in devices.splitlines()]
    facts += [f"- {n}={v}" for n, v in os.environ.items() if n.startswith("CUDA_")]
    every = steps(root, folder)
    code = 0
    try:
        for number, step in enumerate(every, 1):
            limit = f"at most {step.minutes:g} minutes"
            print(f"[{number}/{len(every)}] {step.name} ({limit})", flush=True)
            run(step, folder, root)
            if step.result == "passed" and tested_nothing(step, folder):
                step.result = "failed: no test ran"
            print(f"[{number}/{len(every)}] {step.name}: {step.result}", flush=True)
            write(summary(every, folder, facts), folder)
            if step.result != "passed":
                code = 1
                if step.needed:
                    code = 3 if step.name == "device" else 1
                    break
    except KeyboardInterrupt:
        code = 130
    recorded = root / "results" / "asv" / name
    if recorded.is_dir():
        shutil.copytree(str(recorded), str(folder / "asv" / name))
    write(summary(every, folder, facts), folder)
    print(f"bring back {folder}; read {folder / 'summary.md'} first", flush=True)
    return code


def write(text: str, folder: Path) -> None:
    """The summary, in one step."""
    partial = folder / "summary.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(str(partial), str(folder / "summary.md"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped: say so, too
    sys.exit(main())
