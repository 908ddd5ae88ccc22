"""The one document that every command writes: encoded, decoded and kept whole here.

Schema 1: {"schema": 1, "environment": {...}, "summary": {...}, "records": [...]}, with
the types of `harness.project.records`. Schema 2 is that of compressed files: it has
"columns" in place of "records" (`harness.project.columns`). Strict JSON: what is not a
finite number is null. A file is replaced atomically, so that an interrupted run or a
full disk leaves the old one as it was. Reading collects what is wrong: an odd record
costs itself.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import io
import os
import platform
import stat
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gradwatch.harness.project import git
from gradwatch.harness.project.collector import paused
from gradwatch.harness.project.columns import Columns, columns, rows
from gradwatch.harness.project.git import NoCommit
from gradwatch.harness.project.lock import remove_stale
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import Environment, Kind, Record, Summary

SCHEMA = 1
IN_COLUMNS = 2  # the schema of what is compressed

#: Bytes of a file that is read: four times the longest document, the agreement of all
#: sixty ops as it was once written (155 MiB; 94 MiB now). What is longer is not ours,
#: and would fill the memory.
LONGEST = 640 << 20

T = TypeVar("T")
Fields = TypeVar("Fields", bound=msgspec.Struct)  # all of which have defaults


class Unreadable(Exception):
    """The file is not a document of ours: missing, truncated, or of a newer schema.

    `why` is the reason without the file, for pages that name the file beside it.
    """

    def __init__(self, why: str, source: str | Path = "") -> None:
        """Keep both; the message has the file before the reason."""
        super().__init__(f"{source}: {why}" if source else why)
        self.why = why


@dataclass
class Document(Generic[Record, Summary]):
    """A document; `troubles` has a line for each part of it that could not be read."""

    environment: Environment
    summary: Summary
    records: list[Record]
    troubles: tuple[str, ...] = ()


def document(
    records: Iterable[Record], summary: Summary, environment: Environment | None = None
) -> Document[Record, Summary]:
    """A document with the records, and the environment in which they were made."""
    return Document(environment or surroundings(), summary, list(records))


def surroundings() -> Environment:
    """Machine, commit and versions, without any path or host name."""
    commit, dirty = _commit()
    now = datetime.datetime.now(datetime.timezone.utc)
    return Environment(
        machine=machine_name(),
        cpu=_processor(),
        cores=os.cpu_count() or 1,
        system=platform.system(),
        python=platform.python_version(),
        commit=commit,
        dirty=dirty,
        date=now.isoformat("T", "seconds"),
    )


def _processor() -> str:
    """The model of the processor on Linux, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def machine_name() -> str:
    """The name of the machine: GRADWATCH_MACHINE, or else its number of cores."""
    return os.environ.get("GRADWATCH_MACHINE") or f"cpu-{os.cpu_count() or 1}core"


def _commit() -> tuple[str, bool]:
    """The commit of the checkout, and whether what runs differs from it."""
    try:
        commit = git.commit_of("HEAD", ROOT)
    except NoCommit:
        return "", False  # an installed copy has no commit to name
    return commit, bool(git.changed_files(ROOT, (".", ":!results"), untracked="no"))


# Writing ------------------------------------------------------------------------


def plain(content: Document[Any, Any]) -> dict[str, Any]:
    """The document as builtin types."""
    parts = {
        "schema": SCHEMA,
        "environment": content.environment,
        "summary": content.summary,
        "records": content.records,
    }
    builtins: dict[str, Any] = msgspec.to_builtins(parts, enc_hook=_builtin)
    return builtins


def dumps(content: Any) -> str:
    """Strict JSON, indented; of a document each record is one line.

    Two hundred thousand records with a line for each field were four times as long.
    """
    if not isinstance(content, Document):
        return msgspec.json.format(compact(content), indent=1)
    lines = ",\n".join(map(compact, content.records))
    return f'{_opening(content, SCHEMA)},\n "records": [\n{lines}\n]}}'


def _opening(content: Document[Any, Any], schema: int) -> str:
    """The text of a document up to its records."""
    around = plain(replace(content, records=[])) | {"schema": schema}
    del around["records"]
    return dumps(around)[:-2]


def dense(content: Any) -> str:
    """Strict JSON as compressed files hold it: records in columns where they can be."""
    if not isinstance(content, Document):
        return dumps(content)
    listed = columns(content.records, _builtin)
    if listed is None:
        return dumps(content)
    lines = ",\n".join(f"{compact(n)}: {compact(c)}" for n, c in listed.items())
    return f'{_opening(content, IN_COLUMNS)},\n "columns": {{\n{lines}\n}}}}'


def compact(content: Any) -> str:
    """The same in one line."""
    content = plain(content) if isinstance(content, Document) else content
    try:
        return msgspec.json.encode(content, enc_hook=_builtin).decode()
    except UnicodeEncodeError:  # half a surrogate pair, in a framework's message
        content = _legal(msgspec.to_builtins(content, enc_hook=_builtin))
        return msgspec.json.encode(content).decode()


def packed(content: Any) -> bytes:
    """The same for a pipe between processes: infinity stays what it is."""
    try:
        return msgspec.msgpack.encode(content, enc_hook=_builtin)
    except UnicodeEncodeError:
        content = _legal(msgspec.to_builtins(content, enc_hook=_builtin))
        return msgspec.msgpack.encode(content)


def _builtin(value: Any) -> Any:
    """NumPy's scalars, paths, and mappings of other types, as what JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is of no type that JSON has")


def _legal(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_legal(one) for one in value]
    if isinstance(value, dict):
        return {_legal(key): _legal(one) for key, one in value.items()}
    return value


_LEVEL = 6  # of gzip: 9 takes twice as long and saves a hundredth


def write(content: Any, target: str | Path) -> None:
    """Write a document to a file, or to standard output if the target is "-".

    A file whose name ends in .gz is compressed: a fiftieth of the size for the
    agreement of all ops. The same document is the same bytes.
    """
    if str(target).endswith(".gz"):
        text = dense(content) + "\n"
        compressed = gzip.compress(text.encode(errors="replace"), _LEVEL, mtime=0)
        replace_file(Path(target), compressed)
    elif str(target) == "-":
        sys.stdout.write(dumps(content) + "\n")
    else:
        replace_file(Path(target), dumps(content) + "\n")


def replace_file(target: Path, content: str | bytes) -> None:
    """Write a file completely or not at all.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        if isinstance(content, str):
            content = content.encode(errors="replace")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk does not say of what
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


# Reading ------------------------------------------------------------------------

#: Errors of a decoder: the JSON is damaged, nested too deeply, or of another type.
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_Fields = dict[str, msgspec.Raw]

_GZIP = b"\x1f\x8b"  # RFC 1952: no JSON begins with it


def bytes_of(source: str | Path) -> bytes:
    """The bytes of a regular file that is not too long; those of a gzip file expanded.

    Raises:
        Unreadable: It is not a regular file, too long, or cannot be read.
    """
    content = _bytes_of(source)
    return _expanded(content, source) if content[:2] == _GZIP else content


def _expanded(content: bytes, source: str | Path) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            expanded = file.read(LONGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"not readable as gzip ({error})", source) from None
    if len(expanded) > LONGEST:
        raise Unreadable(f"more than {LONGEST >> 20} MB when expanded", source)
    return expanded


def _bytes_of(source: str | Path) -> bytes:
    try:
        opened = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode):
                raise Unreadable("not a regular file", source)
            if about.st_size > LONGEST:
                size, most = (f"{n / (1 << 20):.0f}" for n in (about.st_size, LONGEST))
                raise Unreadable(f"{size} MB long, {most} are read at most", source)
            return file.read()
    except FileNotFoundError:
        raise Unreadable("no such file", source) from None
    except OSError as error:
        raise Unreadable(error.strerror or str(error), source) from None


def decoded(
    content: bytes | msgspec.Raw, kind: type[T], source: str | Path, part: str = ""
) -> T:
    """JSON as one value of a type; `part` names the part of the source that it is.

    Raises:
        Unreadable: it is damaged or of another type; the message begins with `source`.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except _FAULTS as error:
        why = _why(error)
        raise Unreadable(f"{part}: {why}" if part else why, source) from None


def _why(error: Exception) -> str:
    """What is wrong with some JSON, in a line; it never has the whole of a value."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, msgspec.ValidationError):
        return reason
    return f"not readable as JSON ({reason})"


def load(source: str | Path, kind: type[T]) -> T:
    """A whole JSON file as one value of a type.

    Raises:
        Unreadable: the file is missing, damaged, too long, or of another type.
    """
    return decoded(bytes_of(source), kind, source)


def read(source: str | Path, kind: Kind[Record, Summary]) -> Document[Record, Summary]:
    """Read a document, and list the parts of it that could not be read.

    Raises:
        Unreadable: The file is missing, completely damaged, or of another schema.
    """
    return Parts.of(source).document(kind)


def read_whole(
    source: str | Path, kind: Kind[Record, Summary]
) -> Document[Record, Summary]:
    """Read a document that must be completely valid.

    Raises:
        Unreadable: Any part of it is not valid.
    """
    content = read(source, kind)
    if content.troubles:
        raise Unreadable(content.troubles[0], source)
    return content


@dataclass(frozen=True)
class Parts:
    """A document whose parts have not been decoded yet."""

    source: str
    environment: msgspec.Raw
    summary: msgspec.Raw
    records: list[msgspec.Raw]
    columns: Columns

    @classmethod
    def of(cls, source: str | Path) -> Parts:
        """Read a file and check that it is a document.

        Raises:
            Unreadable: It is missing, completely damaged, or of another schema.
        """
        parts = load(source, _Fields)
        if "schema" not in parts:
            raise Unreadable("no gradwatch document (it has no schema)", source)
        schema = bytes(parts["schema"]).decode(errors="replace").strip()
        if schema not in (str(SCHEMA), str(IN_COLUMNS)):
            message = f"schema {schema[:20]}, this version reads up to {IN_COLUMNS}"
            raise Unreadable(message, source)
        if "environment" not in parts:
            raise Unreadable("it has no environment", source)
        records, listed = list[msgspec.Raw](), Columns()
        if schema == str(IN_COLUMNS):
            given = parts.get("columns", msgspec.Raw(b"null"))
            listed = decoded(given, Columns, source, "columns")
        else:
            given = parts.get("records", msgspec.Raw(b"null"))
            records = decoded(given, list[msgspec.Raw], source, "records")
        summary = parts.get("summary", msgspec.Raw(b"{}"))
        return cls(str(source), parts["environment"], summary, records, listed)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields of the first record that has any."""
        if self.columns:
            return frozenset(self.columns)
        for record in self.records:
            with contextlib.suppress(Unreadable):
                return frozenset(decoded(record, _Fields, self.source))
        return frozenset()

    def document(self, kind: Kind[Record, Summary]) -> Document[Record, Summary]:
        """Decode all valid parts, and describe each fault in a line.

        Raises:
            Unreadable: The environment is invalid, so the origin of it is unknown; or
                the columns do not fit together.
        """
        decoded(self.environment, _Fields, self.source, "environment")
        environment, unknown = _sound_fields(
            self.environment, Environment, "environment"
        )
        with paused():
            records, faults = self._records(kind.record)
        summary, odd = _sound_fields(self.summary, kind.summary, "summary")
        return Document(environment, summary, records, (*unknown, *faults, *odd))

    def _records(self, kind: type[Record]) -> tuple[list[Record], list[str]]:
        if not self.columns:
            return _sound(self.records, msgspec.json.Decoder(kind).decode)
        try:
            return _sound(rows(self.columns), partial(msgspec.convert, type=kind))
        except ValueError as error:
            raise Unreadable(f"columns: {error}", self.source) from None


def _sound(
    listed: Iterable[T], read: Callable[[T], Record]
) -> tuple[list[Record], list[str]]:
    """The valid records, and the number of invalid ones for each reason."""
    valid, faults = list[Record](), Counter[str]()
    for one in listed:
        try:
            valid.append(read(one))
        except _FAULTS as error:
            faults[_why(error)] += 1
    count = len(valid) + faults.total()
    return valid, [
        f"{number} of {count} records are not read: {why}"
        for why, number in faults.items()
    ]


def _sound_fields(
    content: msgspec.Raw, kind: type[Fields], name: str
) -> tuple[Fields, list[str]]:
    """A part of a document without its invalid fields, and a line for each of them."""
    with contextlib.suppress(Unreadable):
        return decoded(content, kind, ""), []
    try:
        parts = decoded(content, _Fields, name)
    except Unreadable as error:
        return kind(), [str(error)]
    sound, faults = dict[str, Any](), list[str]()
    for about in msgspec.structs.fields(kind):
        if about.encode_name in parts:
            place = f"{name}: {about.encode_name}"
            try:
                value = decoded(parts[about.encode_name], about.type, place)
            except Unreadable as error:
                faults.append(str(error))
            else:
                sound[about.name] = value
    return kind(**sound), faults
