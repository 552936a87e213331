"""Decides whether glibc keeps freed memory or returns it; has no effect with another C library."""

import ctypes
import gc
import platform

_KEPT_BYTES = 256 << 20
"""Freed memory that the process keeps. This is more than a chunk of the shot network needs: its
largest tensor has 21 MB."""
_DEFAULT_BYTES = 128 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's numbers for `mallopt`


def keep_freed_memory() -> None:
    """Makes glibc reuse large freed blocks of memory.

    By default, glibc returns freed blocks of some megabytes to the system. The kernel then clears
    and maps new pages, which takes up to a tenth of the shot network's time. All threads share one
    heap, because each heap keeps freed memory, and workers would grow with each source.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # The other options only help if this one is accepted: the value may be too large.
        if libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES):
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            libc.mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Returns freed memory to the system, and makes glibc keep only small blocks from here on.

    All threads still share one heap after `keep_freed_memory`.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, _DEFAULT_BYTES)
        libc.malloc_trim(0)
