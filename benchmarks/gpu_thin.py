#!/usr/bin/env python3
"""Blanks the GPU code of other architectures in libraries, so archives of the libraries are small.

    gpu_thin.py ARCHITECTURE LIBRARY...        # ARCHITECTURE: 90 for an H100 or H200

A CUDA library holds "fat binaries": a header of 16 bytes with the total size, then entries. Each
has its own header (little-endian: kind at byte 0, header size at byte 4, code size at byte 8,
architecture at byte 28). The driver loads only the entry of its GPU. Sizes and
offsets stay the same; only the code of other entries becomes zeros.
"""

import mmap
import struct
import sys
from pathlib import Path

MAGIC = bytes.fromhex("50ed55ba")
HEADER_BYTES, MACHINE_CODE = 16, 2


def blank(library: Path, architecture: int) -> tuple[int, int]:
    """Blanks the entries of a library that are not machine code of one architecture.

    Returns:
        Number of bytes kept, and of bytes blanked.
    """
    kept = blanked = 0
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        at = data.find(MAGIC)
        while at >= 0:
            _, _, header, size = struct.unpack_from("<IHHQ", data, at)
            if header == HEADER_BYTES and at + header + size <= len(data):
                entry, end = at + header, at + header + size
                while entry < end:
                    kind, _, skip, n_bytes = struct.unpack_from("<HHIQ", data, entry)
                    (of,) = struct.unpack_from("<I", data, entry + 28)
                    if skip == 0:
                        break
                    code = slice(entry + skip, entry + skip + n_bytes)
                    if (kind, of) == (MACHINE_CODE, architecture):
                        kept += n_bytes
                    else:
                        data[code] = bytes(n_bytes)
                        blanked += n_bytes
                    entry = code.stop
            at = data.find(MAGIC, at + len(MAGIC))
    return kept, blanked


def main() -> None:
    """Blanks libraries; exits if a library has no code of the architecture."""
    architecture, libraries = int(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    for library in libraries:
        kept, blanked = blank(library, architecture)
        if blanked and not kept:
            sys.exit(f"{library} has no machine code for architecture {architecture}")
        print(f"{library.name}: {kept >> 20} MiB kept, {blanked >> 20} MiB blanked")


if __name__ == "__main__":
    main()
