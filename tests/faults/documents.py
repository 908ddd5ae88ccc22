"""Mutated documents: each costs itself, in one line, and nothing of what lies beside.

A reader answers with the number of sound things that it found beside the damaged one.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from gradwatch.harness.agreement import store
from gradwatch.harness.dashboard.matrix import read_results
from gradwatch.harness.history import asv_results
from gradwatch.harness.judging.defects import known
from gradwatch.harness.nightly import night
from gradwatch.harness.project import documents, paths
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.records import KINDS, Kind
from gradwatch.harness.watch.alerts import Findings, read_rules
from tests import damage
from tests.dashboard.browser import invented
from tests.faults.campaign import Fault

#: What says in one line that a document cannot be read.
REFUSALS = (Unreadable,)


@dataclass(frozen=True)
class Reader:
    """What reads a document: `make` writes a sound one, and `read` reads it."""

    make: Callable[[Path], Path]
    read: Callable[[Path], int]


def inject(
    count: int,
    random: Random,
    folder: Path,
    readers: Mapping[str, Reader] | None = None,
) -> Iterator[Fault]:
    """Damage a document of a random reader, read, and make it sound again."""
    chosen = READERS if readers is None else readers
    made = {}
    for name, reader in chosen.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        file = reader.make(place)
        made[name] = (place, file, file.read_bytes(), reader.read(place))
    for _ in range(count):
        name = random.choice(list(chosen))
        place, file, sound, beside = made[name]
        how = _damage(file, sound, random)
        what = f"{name}, {how}"
        yield Fault(what, _lost(chosen[name], place, file, beside))
        _sound_again(file, sound)


def _lost(reader: Reader, place: Path, file: Path, beside: int) -> dict[str, str]:
    try:
        found = reader.read(place)
    except REFUSALS as error:
        if "\n" in str(error) or file.name not in str(error):
            return {"traceback": f"no line that names it: {str(error)[:200]!r}"}
        return {}
    except Exception:  # noqa: BLE001  # whatever it is, it is a loss
        return {"traceback": " ".join(traceback.format_exc(limit=-1).split())[:300]}
    if found != beside:
        return {"result lost": f"{found} of {beside} beside it are read"}
    return {}


def _damage(file: Path, sound: bytes, random: Random) -> str:
    """Damage a file in a random way; which way that was."""
    way = random.choice(["field", "field", "field", "cut", "byte", "whole"])
    if way == "field":
        try:
            document = json.loads(sound)
        except ValueError:  # not JSON
            way = "cut"
        else:
            text = damage.mutant(document, random)
            file.write_text(text, encoding="utf-8", errors="surrogatepass")
            return f"a field: {text[:40]!r}"
    if way == "whole":
        how = random.choice([name for name in damage.FILES if name != "700 MB"])
        file.unlink()
        damage.FILES[how][0](file)
        return how
    place = random.randrange(len(sound))
    if way == "cut":
        file.write_bytes(sound[:place])
        return f"cut after {place} bytes"
    changed = bytearray(sound)
    changed[place] = random.randrange(256)
    file.write_bytes(changed)
    return f"byte {place} is {changed[place]}"


def _sound_again(file: Path, sound: bytes) -> None:
    if file.is_dir():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)
    file.write_bytes(sound)


# The readers --------------------------------------------------------------------


def _document(kind: Kind[Any, Any]) -> Reader:
    """Of a document that a command writes; nothing lies beside it."""

    def make(folder: Path) -> Path:
        summary = msgspec.to_builtins(kind.summary())
        about = invented.environment(1)
        invented.write_document(file(folder), damage.rows(kind), about, **summary)
        return file(folder)

    def file(folder: Path) -> Path:
        return folder / f"{kind.name}.json"

    def read(folder: Path) -> int:
        documents.read(file(folder), kind)
        return 0

    return Reader(make, read)


def _results(folder: Path) -> Path:
    invented.write_time(folder, 5)
    names = ("numpy_graph", "numpy_manual")
    made = [invented.agree_record("add", name) for name in names]
    file = folder / "latest" / "agree.json"
    invented.write_document(file, made, invented.environment(1), missing={}, pairs={})
    return file


def _read_results(folder: Path) -> int:
    found = read_results(folder)
    for trouble in found.troubles:
        assert "\n" not in trouble.why
    return sum(len(s.records) for s in found.sources if "agree" not in s.file)


def _history(folder: Path) -> Path:
    invented.write_history(folder, 3)
    return sorted((folder / "asv" / invented.MACHINE).glob("*-*.json"))[0]


def _read_history(folder: Path) -> int:
    """The figures of the commits whose files are sound: all but the first by name."""
    sound = sorted(invented.commit(number) for number in range(3))[1:]
    series = asv_results.read(folder / "asv", sound, [])
    return sum(entry.commit in sound for one in series for entry in one.entries)


def _finding(folder: Path) -> Path:
    invented.write_finding(folder, "add")
    return folder / "findings" / "index.json"


def _read_findings(folder: Path) -> int:
    found, troubles = store.load(folder / "findings")
    assert not any("\n" in why for why in troubles)
    return 0 * len(found)


def _known(folder: Path) -> Path:
    (folder / "known.json").write_bytes(known.FILE.read_bytes())
    return folder / "known.json"


def _rules(folder: Path) -> Path:
    file = folder / "asv.conf.json"
    rules = {"regressions_thresholds": {".*": 0.1}, "regressions_first_commits": {}}
    file.write_text(json.dumps(rules))
    return file


def _nightly(folder: Path) -> Path:
    file = folder / "nightly.json"
    summary = {"parts": [], "new": 0, "known": 0, "gone": []}
    problem = {"part": "agree", "op": "a", "backend": "b", "what": "c", "told": "d"}
    invented.write_document(file, [problem], invented.environment(1), **summary)
    return file


def _read_nightly(folder: Path) -> int:
    _, notes = night.problems_of(folder / "nightly.json")
    assert not any("\n" in note for note in notes)
    return 0


def _confirmations(folder: Path) -> Path:
    file = folder / "machine.json"
    made = [{"key": key, "ratio": 1.0, "low": 0.9, "high": 1.1} for key in "ab"]
    invented.write_document(file, made, invented.environment(1))
    return file


def _read_confirmations(folder: Path) -> int:
    assert not any("\n" in why for why in Findings(folder / "machine.json").troubles)
    return 0


def _table(folder: Path) -> Path:
    file = folder / "pyproject.toml"
    file.write_text('[tool.gradwatch]\nops = ["a", "b"]\n[tool.gradwatch.python]\n')
    return file


def _read_table(folder: Path) -> int:
    assert "\n" not in paths.find(folder, {}).problem
    return 0


def _counted(read: Callable[[Path], object], name: str) -> Callable[[Path], int]:
    """Of a file beside which nothing lies."""
    return lambda folder: bool(read(folder / name)) and 0


READERS = {
    **{f"a document of {kind.name}": _document(kind) for kind in KINDS},
    "results beside others": Reader(_results, _read_results),
    "a commit's figures": Reader(_history, _read_history),
    "a finding": Reader(_finding, _read_findings),
    "known outcomes": Reader(_known, _counted(known.load, "known.json")),
    "the watch's rules": Reader(_rules, _counted(read_rules, "asv.conf.json")),
    "the night before": Reader(_nightly, _read_nightly),
    "comparisons made": Reader(_confirmations, _read_confirmations),
    "a project's table": Reader(_table, _read_table),
}
