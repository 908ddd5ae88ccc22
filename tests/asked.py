"""What a worker answers to a request, without one."""

from collections.abc import Mapping
from typing import Any

from gradwatch.harness import endpoint
from gradwatch.harness.workers.arrays import decoded


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What arrives of the answer."""
    reply: dict[str, Any] = decoded(endpoint.answer(request))
    reply.pop("nonce")
    return reply
