"""Sends a document to a file or a webhook, only when the user asks for it."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gradwatch.harness.project import documents

TIMEOUT = 10.0  # seconds in all: a slow server must not block the run
SCHEMES = ("http", "https")


class NotSent(Exception):
    """The document did not arrive; the message says why."""


def is_address(target: str) -> bool:
    """Whether the target is an address and not a file.

    Raises:
        NotSent: The address is not http or https.
    """
    scheme = urlsplit(target).scheme
    if "://" in target and scheme not in SCHEMES:
        raise NotSent(f"{shown(target)}: {scheme} is neither http nor https")
    return scheme in SCHEMES


def shown(target: str) -> str:
    """A target as messages name it: of an address the host; the rest is a secret."""
    parts = urlsplit(target)
    if "://" not in target:
        return target
    return f"{parts.scheme}://{parts.hostname or ''}"


def notify(target: str, content: Mapping[str, Any]) -> None:
    """Write a document to a file, or POST it as JSON.

    Raises:
        NotSent: The server does not answer within ten seconds or refuses, or the file
            cannot be written.
    """
    try:
        if is_address(target):
            _post_in_time(target, documents.dumps(content).encode())
        else:
            documents.write(content, Path(target))
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise NotSent(f"{shown(target)}: HTTP status {error.code}") from None
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise NotSent(f"{shown(target)}: {why}") from None
    except (http.client.HTTPException, ValueError) as error:  # it may quote the address
        kind = type(error).__name__
        raise NotSent(f"{shown(target)}: no address of a host ({kind})") from None


def _post_in_time(address: str, body: bytes) -> None:
    """POST, and wait for `TIMEOUT` in all: a socket's own limit is for each operation.

    Raises:
        TimeoutError: There is no answer by then.
        OSError, HTTPException, ValueError: As urllib's.
    """
    raised: list[Exception] = []

    def post() -> None:
        try:
            _post(address, body)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised below
            raised.append(error)

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {TIMEOUT:g} s")
    if raised:
        raise raised[0]


def _post(address: str, body: bytes) -> None:
    request = urllib.request.Request(
        address,
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": "gradwatch"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT):
        pass  # any success status is fine
