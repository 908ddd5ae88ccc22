"""Hostile files among sound results, from a seed: what a stranger may hand over.

A command reads each in a fork of this process, within limits of memory and of
processor time.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import resource
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from tests import damage

SECONDS, BYTES = 2, 1 << 30
_MANY = 1_000_000


@dataclass(frozen=True)
class Seen:
    """What a command that read a hostile file did: its exit code, and what it said."""

    code: int
    seconds: float
    said: str


def _grown(key: str, raw: str) -> Callable[[bytes], bytes]:
    """A sound file with one more key, whose value is raw JSON; in place of another."""

    def grow(sound: bytes) -> bytes:
        content = json.loads(sound)
        if not isinstance(content, dict):
            content = {}
        content[key] = "RAW"
        return json.dumps(content).replace('"RAW"', raw).encode()

    return grow


def _record(raw: str) -> Callable[[bytes], bytes]:
    """A sound file whose records, or results, are raw JSON."""

    def grow(sound: bytes) -> bytes:
        name = "records" if b'"records"' in sound else "results"
        return _grown(name, raw)(sound)

    return grow


def _keys(count: int) -> str:
    return "{" + ",".join(f'"k{i}":{i}' for i in range(count)) + "}"


def _params(count: int, length: int) -> str:
    """A result whose parameters have length ** count combinations."""
    listed = [["'a'"] * length] * count
    return json.dumps({"bench_speed.add.time_forward": [[1.0], listed]})


#: Ways to make a sound file hostile, from its bytes.
WAYS: dict[str, Callable[[bytes], bytes]] = {
    "a million keys": lambda sound: _grown("zz", _keys(_MANY))(sound),
    "a million records": lambda sound: _record("[" + "{}," * _MANY + "{}]")(sound),
    "a million numbers": lambda sound: _record("[" + "1," * _MANY + "1]")(sound),
    "a million results": lambda sound: _record(_keys(_MANY))(sound),
    "a million names": lambda sound: _record(
        "{"
        + ",".join(f'"bench_speed.k{i}.time_forward":[]' for i in range(_MANY))
        + "}"
    )(sound),
    "many combinations": lambda sound: _record(_params(40, 40))(sound),
    "a count of combinations at the limit": lambda sound: _record(_params(6, 10))(
        sound
    ),
    "deep in a field": lambda sound: _grown("zz", "[" * 100_000)(sound),
    "deep and closed": lambda sound: _grown("zz", "[" * 90_000 + "]" * 90_000)(sound),
    "deep objects": lambda sound: _record('{"a":' * 90_000 + "1" + "}" * 90_000)(sound),
    "NaN": lambda sound: sound.replace(b"1", b"NaN", 1),
    "infinite": lambda sound: _grown("summary", '{"seconds": 1e999}')(sound),
    "controls": lambda sound: _grown("machine", r'"\u001b]0;a\u0007\n\r\u202e"')(sound),
    "controls in a name": lambda sound: _record(r'{"\u001b[31m\n.a.b": [7]}')(sound),
    "half a surrogate pair": lambda sound: _grown("commit_hash", r'"\ud800"')(sound),
    "a long text": lambda sound: _grown("date", '"' + "x" * (8 << 20) + '"')(sound),
    "a long number": lambda sound: _grown("date", "9" * 100_000)(sound),
    "a far date": lambda sound: _grown("date", "1e300")(sound),
    "a negative date": lambda sound: _grown("date", "-99999999999999999")(sound),
    "zeros, packed": lambda sound: gzip.compress(bytes(200 << 20), 1),
    "blanks, packed": lambda sound: gzip.compress(b" " * (200 << 20) + sound, 1),
    "packed twice": lambda sound: gzip.compress(gzip.compress(bytes(200 << 20), 1)),
    "cut when packed": lambda sound: gzip.compress(sound)[:-9],
    "a member after it": lambda sound: gzip.compress(sound) + gzip.compress(b"{}"),
    "deflated zeros": lambda sound: zlib.compress(bytes(300 << 20), 1),
    "nulls": lambda sound: bytes(1 << 20),
    "another encoding": lambda sound: sound.decode().encode("utf-16"),
    "bytes of no text": lambda sound: sound.replace(b'"', b'"\xff\xfe', 3),
    "twice": lambda sound: sound + sound,
    "empty object": lambda sound: b"{}",
    "a list": lambda sound: b"[" + sound + b"]",
}


def _to_elsewhere(file: Path, target: str) -> None:
    file.unlink()
    file.symlink_to(target)


#: Ways that need the file itself.
PLACES: dict[str, Callable[[Path], object]] = {
    "a link to a secret": lambda file: _to_elsewhere(file, "/etc/hostname"),
    "a link to itself": lambda file: _to_elsewhere(file, file.name),
    "a link to a device": lambda file: _to_elsewhere(file, "/dev/zero"),
    "a link to nothing": lambda file: _to_elsewhere(file, "nowhere"),
}


def spoilt(file: Path, random: Random) -> str:
    """Make a sound file hostile in a random way; which way that was."""
    sound = file.read_bytes()
    way = random.choice(["field", "field", "whole", "place", *["way"] * 6])
    if way == "field":
        text = damage.mutant(json.loads(sound), random)
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        return f"a field ({text[:40]!r})"
    if way == "way":
        way = random.choice([*WAYS])
        file.write_bytes(WAYS[way](sound))
        return way
    if way == "place":
        way = random.choice([*PLACES])
        PLACES[way](file)
        return way
    way = random.choice([*damage.FILES])
    file.unlink()
    damage.FILES[way][0](file)
    return way


def seen(run: Callable[[], int], folder: Path, sound: Seen | None = None) -> Seen:
    """What a call does in a fork that has `BYTES` more than this process has.

    And `SECONDS` more than the reading of what is sound took.
    """
    said = folder / "said"
    child = os.fork()
    if not child:
        code = 70
        try:
            with said.open("wb") as file:
                os.dup2(file.fileno(), 2)
            with (folder / "shown").open("wb") as file:
                os.dup2(file.fileno(), 1)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            most = psutil.Process().memory_info().vms + BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            if sound:
                most = SECONDS + math.ceil(sound.seconds)
                resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            code = run()
        except BaseException:  # noqa: BLE001  # of a fork; the parent reads it
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    return Seen(code, seconds, said.read_text(errors="replace"))


def faults_of(seen: Seen) -> Iterator[str]:
    """What is wrong about how a command took a hostile file."""
    said = seen.said.splitlines()  # of sound commits, which were made up; progress
    lines = [line for line in said if not re.search("not on this|writing the d", line)]
    if "Traceback" in seen.said:
        yield "a traceback"
    if seen.code not in (0, 2):
        yield f"exit code {seen.code}"
    if len(lines) > 1 or (seen.code and not lines):
        yield f"{len(lines)} lines"
    if any(not c.isprintable() for line in lines for c in line):
        yield "control characters"
    if max(map(len, lines), default=0) > 1000:
        yield "a long line"
