"""Fixes glibc's allocator in one mode, so that times of fresh processes are comparable.

By default glibc changes its thresholds while a process runs: one process gets a 1 MB
gradient from the heap, the next one gets fresh pages, and the same backward takes 300
or 750 us. Setting only one of the two parameters freezes the other at a small default
and makes it worse.
"""

#: Buffers up to this size stay in the heap: mallopt(3)'s limit on 64-bit systems.
#: glibc 2.36 takes more, older releases refuse it.
MMAP_THRESHOLD = 32 << 20

#: Freed memory kept at the top of the heap: more than any of our cases holds at once.
TRIM_THRESHOLD = 1 << 30

#: One heap for all threads. Those of other threads are limited to 64 MiB, beyond which
#: the two parameters above have no effect: three buffers of 24 MiB in a thread cost
#: 6145 page faults a call, with one heap 0 (glibc 2.36). OneFlow computes in such
#: threads.
ARENAS = 1

#: Variables that fix the allocator of a child process from its start. Plain byte
#: counts: "32M" is accepted silently and does nothing. The last underscores are part of
#: the name.
MALLOC_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
    "MALLOC_ARENA_MAX": str(ARENAS),
}

#: Makes glibc (2.35 and later, on Linux) use huge pages for the heap if possible. The
#: places of 4 KiB pages decide what shares a set of the L2 cache, for the whole life of
#: a process: layer_norm backward 256x1024 in two processes of one commit, beside busy
#: neighbours, differs with a standard deviation of 11 % on these, 5.5 % on huge ones.
#: Peak memory is then counted in steps of 2 MiB: not where that is measured.
HUGE_PAGES_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
