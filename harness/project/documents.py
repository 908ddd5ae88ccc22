"""The one document that every command writes: encoded, decoded, merged and kept here.

{"schema": 1, "environment": {...}, "summary": {...}, "records": [...]}, with the types
of `harness.project.records`. Strict JSON: numbers that are not finite are null. A file
is replaced atomically, and read as a whole or refused with one line.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import operator
import os
import platform
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gradwatch.harness.project import git
from gradwatch.harness.project.git import NoCommit
from gradwatch.harness.project.machines import machine_name, traits
from gradwatch.harness.project.paths import PROJECT, ROOT, Busy, alone, remove_stale
from gradwatch.harness.project.records import CHECK, Environment, Kind, Record, Summary
from gradwatch.impls.catalogue import op_names

SCHEMA = 1

#: The most bytes of a file that is read: more than the longest document, the agreement
#: of all ops in four precisions (185 MiB). A longer file is not ours, and could fill
#: the memory.
LONGEST = 256 << 20

T = TypeVar("T")


class Unreadable(Exception):
    """The file is not a document of ours: missing, damaged, or of another schema.

    `why` is the reason without the `file`, for pages that name that beside it.
    """

    exit_code = 2

    def __init__(self, why: str, file: str | Path = "") -> None:
        """Keep both; the message has the file before the reason."""
        super().__init__(f"{file}: {why}" if file else why)
        self.why, self.file = why, str(file)

    def below(self, folder: Path) -> Unreadable:
        """A copy with the file's path relative to a folder."""
        return Unreadable(self.why, Path(self.file).relative_to(folder).as_posix())


class Document(Struct, Generic[Record, Summary], tag_field="schema", tag=SCHEMA):
    """The records of a run, their summary, and the environment of the run."""

    environment: Environment
    summary: Summary
    records: list[Record]


def document(
    records: Iterable[Record], summary: Summary, environment: Environment | None = None
) -> Document[Record, Summary]:
    """Return a document with the records, made in this environment by default."""
    return Document(environment or surroundings(), summary, list(records))


def surroundings() -> Environment:
    """Return machine, commit and versions, without any path or host name."""
    about = Environment(
        machine=machine_name(),
        cpu=traits()["cpu"],
        cores=os.cpu_count() or 1,
        system=platform.system(),
        python=platform.python_version(),
        date=datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
    )
    with contextlib.suppress(NoCommit):  # an installed copy has no commit to name
        about.commit = git.commit_of("HEAD", ROOT)
        about.dirty = bool(git.changed_files(ROOT, (".", ":!results"), untracked="no"))
    return about


def kept(
    file: Path, kind: Kind[Record, Summary]
) -> tuple[list[Record], list[Unreadable]]:
    """The records of a document, or none, and the error of reading it, if any."""
    try:
        return read(file, kind).records if file.exists() else [], []
    except Unreadable as error:  # a new one: the frames of this hold the content
        return [], [Unreadable(error.why, error.file)]


# Writing ------------------------------------------------------------------------


def dumps(content: Any) -> str:
    """Return strict JSON, indented; each record of a document is one line.

    Two hundred thousand records with a line for each field were four times as long.
    """
    if not isinstance(content, Document):
        return msgspec.json.format(compact(content), indent=1)
    around = msgspec.json.format(compact(replace(content, records=[])), indent=1)
    lines = ",\n".join(map(compact, content.records))
    return around.removesuffix("]\n}") + f"\n{lines}\n]}}"


def compact(content: Any) -> str:
    """Return strict JSON in one line."""
    return _encoded(content, msgspec.json.Encoder(enc_hook=_builtin)).decode()


def packed(content: Any) -> bytes:
    """Return bytes for a pipe between processes; infinity is kept."""
    return _encoded(content, msgspec.msgpack.Encoder(enc_hook=_builtin))


def _encoded(
    content: Any, encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder
) -> bytes:
    try:
        return encoder.encode(content)
    except UnicodeEncodeError:  # half a surrogate pair, in a framework's message
        plain = msgspec.to_builtins(content, enc_hook=_builtin)
        text = json.dumps(plain, ensure_ascii=False).encode(errors="replace")
        return encoder.encode(json.loads(text))


def _builtin(value: Any) -> Any:
    """Return NumPy's scalars, paths, and other mappings as builtin types of JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is of no type that JSON has")


def write(content: Any, target: str | Path) -> None:
    """Write JSON to a file, or to standard output if the target is "-".

    A file whose name ends in .gz is compressed: a thirtieth of the size for the
    agreement of all ops. The same document is the same bytes.
    """
    text = dumps(content) + "\n"
    if str(target) == "-":
        sys.stdout.write(text)
        return
    whole: str | bytes = text
    if str(target).endswith(".gz"):
        # Level 9 takes twice as long and saves a hundredth.
        whole = gzip.compress(text.encode(errors="replace"), 6, mtime=0)
    replace_file(Path(target), whole)


def replace_file(target: Path, content: str | bytes) -> None:
    """Write a file completely or not at all; a device, such as /dev/null, is kept.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file is kept.
    """
    if isinstance(content, str):
        content = content.encode(errors="replace")
    if target.exists() and not (target.is_file() or target.is_dir()):
        target.write_bytes(content)  # a pipe or a device
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden = os.umask(0o077)
        os.umask(hidden)
        os.chmod(name, 0o666 & ~hidden)
        os.replace(name, target)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk does not name the file
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


# Reading ------------------------------------------------------------------------

#: The most that a gzip file may expand to: a multiple of its size, plus some megabytes.
#: Ours have 50 times their size. Zeros, or a million times `{},`, expand 1000 times.
EXPANDED, ROOM = 200, 4 << 20
_GZIP = b"\x1f\x8b"  # RFC 1952: no JSON begins with it


def bytes_of(source: str | Path) -> bytes:
    """Return the bytes of a regular file; those of a gzip file expanded.

    Raises:
        Unreadable: It is not a regular file, too long, or cannot be read.
    """
    try:
        if Path(source).exists() and not Path(source).is_file():
            raise Unreadable("not a regular file", source)  # a pipe would not answer
        with open(source, "rb") as file:
            zipped = file.read(2) == _GZIP
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            most = min(LONGEST, ROOM + size * EXPANDED) if zipped else LONGEST
            reader = gzip.GzipFile(fileobj=file) if zipped else file
            asked = most + 1 if zipped else size  # `read` allocates so much at once
            content = reader.read(asked) if size <= LONGEST else b""
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Unreadable(f"not readable as gzip ({error})", source) from None
    except OSError as error:
        raise Unreadable(error.strerror or str(error), source) from None
    if max(size, len(content)) > most:
        how = "when expanded" if zipped else "long"
        raise Unreadable(f"more than {most >> 20} MB {how}", source)
    return content


def decoded(content: bytes, kind: type[T], source: str | Path) -> T:
    """Return JSON as one value of a type.

    Raises:
        Unreadable: It is damaged or of another type; the message begins with `source`
            and quotes no whole value.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise Unreadable("nested too deeply", source) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())[:200]
        if not isinstance(error, msgspec.ValidationError):
            why = f"not readable as JSON ({why})"
        raise Unreadable(why, source) from None


def load(source: str | Path, kind: type[T]) -> T:
    """Return a whole JSON file as one value of a type.

    Raises:
        Unreadable: The file is missing, damaged, too long, or of another type.
    """
    return decoded(bytes_of(source), kind, source)


class _Marked(Struct):
    schema: int = 0  # of no document


def read(source: str | Path, kind: Kind[Record, Summary]) -> Document[Record, Summary]:
    """Return the document in a file.

    Raises:
        Unreadable: It is damaged, of another kind, or of another schema.
    """
    content = bytes_of(source)
    schema = decoded(content, _Marked, source).schema
    if schema != SCHEMA:
        why = f"schema {schema}, this version reads {SCHEMA}"
        raise Unreadable(why if schema else "no gradwatch document", source)
    generic: Any = Document
    whole: type[Document[Record, Summary]] = generic[kind.record, kind.summary]
    return decoded(content, whole, source)


# The newest -------------------------------------------------------------------------

#: The merged records of the last runs: of each op, backend and case the newest verdict.
#: A record of another run than its document's has a date and commit of its own. Outside
#: of a project, and where `VARIABLE` is "off", nothing is kept.
LATEST = ROOT / "results" / "latest"

#: The variable that is "off" where a run keeps no document.
VARIABLE = "GRADWATCH_RESULTS"

_PATIENCE = 60.0  # seconds to wait for another run that is writing


def is_kept(kind: Kind[Any, Any]) -> bool:
    """Whether there is a project whose runs keep their documents of a kind.

    A check or a test outside of the project, of a checkout, is none of its runs.
    """
    here = kind is not CHECK or Path.cwd().is_relative_to(ROOT)
    return here and not PROJECT.problem and os.environ.get(VARIABLE) != "off"


#: A function of two summaries, the newer one last, and the records of both documents.
Combined = Callable[[Summary, Summary, Sequence[Record]], Summary]


def keep(
    kind: Kind[Record, Summary],
    content: Document[Record, Summary],
    combined: Combined[Summary, Record] = lambda before, now, records: now,
) -> str:
    """Merge a document into that of its kind; return a line on what went wrong, or "".

    An earlier document of another machine is renamed with that machine's name, and one
    that cannot be read is set aside.
    """
    if not is_kept(kind):
        return ""
    file, trouble = LATEST / f"{kind.name}.json.gz", ""
    try:
        with alone(LATEST / f".{kind.name}.lock", f"writing {file.name}", _PATIENCE):
            try:
                before = read(file, kind) if file.exists() else None
            except Unreadable as error:
                before = None
                aside = file.with_name(f"{file.name}.unreadable-{time.time_ns()}")
                file.rename(aside)
                trouble = f"{error}; set aside as {aside.name}, a new one is begun"
            if before:
                if before.environment.machine == content.environment.machine:
                    content = merged(kind, before, content, combined)
                else:
                    other = f"{kind.name}-{before.environment.machine}.json.gz"
                    file.rename(LATEST / other)
            write(content, file)
    except Busy as error:
        return f"not kept in results/latest: {error}"
    except OSError as error:
        return f"not kept: {error.strerror or error}: {error.filename or file}"
    return trouble


def merged(
    kind: Kind[Record, Summary],
    before: Document[Record, Summary],
    now: Document[Record, Summary],
    combined: Combined[Summary, Record],
) -> Document[Record, Summary]:
    """Return the newer document, with the records that only the earlier one has."""
    if not kind.key:
        return now
    key = operator.attrgetter(*kind.key)
    newer, there = set(map(key, now.records)), {"", *op_names()}
    about, records = before.environment, list[Any]()
    for one in cast("Sequence[Any]", before.records):
        if key(one) not in newer and getattr(one, "op", "") in there:
            if not one.date:
                one.date, one.commit = about.date, about.commit
            records.append(one)
    records += now.records
    summary = combined(before.summary, now.summary, records)
    return Document(now.environment, summary, records)
