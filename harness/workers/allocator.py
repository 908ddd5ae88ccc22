"""glibc's allocator, held in one mode so that fresh processes agree on a time.

By default glibc moves its thresholds while a process runs: a 1 MB gradient is served
from the heap in one process and by fresh pages in the next, and the same backward
takes 300 or 750 us. Setting only one knob freezes the other at a small default and
makes things worse. Standard library only: the first act of a worker, before NumPy.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

#: Buffers up to this size stay in the heap: mallopt(3)'s limit on 64-bit systems.
#: glibc 2.36 takes more, older releases refuse it.
MMAP_THRESHOLD = 32 << 20

#: Freed memory kept at the top of the heap: above what any case of ours holds at once.
TRIM_THRESHOLD = 1 << 30

#: One heap for all threads. Those of other threads are limited to 64 MiB, beyond which
#: the two knobs above do not hold: three buffers of 24 MiB in a thread cost 6145 page
#: faults a call, with one heap 0 (glibc 2.36). OneFlow computes in such threads.
ARENAS = 1

#: What a parent sets for a child to be pinned from its first instruction. Plain byte
#: counts: "32M" is accepted in silence and does nothing. The last underscores belong.
MALLOC_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
    "MALLOC_ARENA_MAX": str(ARENAS),
}

#: Has glibc (2.35 and later, on Linux) put the heap on huge pages where it can.
#: Where 4 KiB pages come to lie decides what shares a set of the L2, and a process has
#: that for life: layer_norm backward 256x1024 in two processes of one commit, beside
#: busy neighbours, differs with a standard deviation of 11 % on these, 5.5 % on huge
#: ones. Peak memory is then counted in steps of 2 MiB: not where that is measured.
HUGE_PAGES_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

_LARGEST_INT = 2**31 - 1  # mallopt's second argument is a C int


def pin_malloc(threshold: int = MMAP_THRESHOLD) -> bool:
    """Keep freed buffers of up to `threshold` bytes in the heap; say whether it holds.

    Ask for more than the largest buffer of the case. False where there is no mallopt
    (musl, macOS, Windows) or it refuses, and then page faults tell what it costs.
    """
    if not 0 < threshold <= _LARGEST_INT:
        raise ValueError(f"a threshold is 1 to {_LARGEST_INT} bytes, not {threshold}")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    knobs = {
        _M_MMAP_THRESHOLD: threshold,
        _M_TRIM_THRESHOLD: max(TRIM_THRESHOLD, threshold),
        _M_ARENA_MAX: ARENAS,
    }
    # The first refusal ends it: one knob alone is worse than none.
    return all(mallopt(knob, value) == 1 for knob, value in knobs.items())
