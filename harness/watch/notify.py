"""Sends a document to a file or a webhook, only when the user asks for it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.project import documents

TIMEOUT = 10  # seconds: a slow server must not block the run
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
        raise NotSent(f"{target}: {scheme} is neither http nor https")
    return scheme in SCHEMES


def notify(target: str, content: Mapping[str, Any]) -> None:
    """Write a document to a file, or POST it as JSON.

    Raises:
        NotSent: The server does not answer within ten seconds or refuses, or the file
            cannot be written.
    """
    try:
        if is_address(target):
            _post(target, documents.dumps(content).encode())
        else:
            documents.write(content, Path(target))
    except urllib.error.HTTPError as error:
        raise NotSent(f"{target}: HTTP status {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None)
        raise NotSent(f"{target}: {why or error}") from None


def _post(address: str, body: bytes) -> None:
    request = urllib.request.Request(
        address,
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": "gradwatch"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT):
        pass  # any success status is fine
