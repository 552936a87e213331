"""Measures the reading of C2PA manifests: CPU time by size of the file, and changed bytes.

    python benchmarks/rights.py [MEDIA] [--flips N] [--repeats N]

Made files are signed here, offline. A file is read with and without a manifest, and probed as the
scan does, for comparison. Then single bits of signed files are flipped, half of them in bytes that
the manifest's hash covers, and each file is scanned in a sandbox. All files under MEDIA (by
default the labelled videos) are read, too, if the folder is there.
"""

import io
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import tests_path  # noqa: F401 - puts `tests/` on the path
from film_makers import write_video
from film_shots import moving_texture
from measure import MIB, SHARED, arguments, spread, tell, work_folder
from PIL import Image
from signed_films import signed

from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Medium, SourceRef
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.content_credentials import CredentialReader
from curator.stages.scan.probe import scan_source
from curator.stages.scan.stage import ScanStage
from curator.storage import stat_source

SIZES_MIB = (1, 16, 256)
MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
MEDIA = frozenset({Medium.VIDEO, Medium.IMAGE})


class Counted(io.BufferedReader):
    """A file that counts the bytes that were read, buffered as the scan's."""

    def __init__(self, path: Path) -> None:
        self.raw_file = _CountedFile(path)
        super().__init__(self.raw_file, 64 << 10)


class _CountedFile(io.FileIO):
    n_bytes = 0

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401
        n = super().readinto(buffer) or 0
        self.n_bytes += n
        return n


def cpu_ms(work: Callable[[], object], repeats: int) -> list[float]:
    """CPU milliseconds of each repetition, after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        begun = time.process_time()
        work()
        found.append((time.process_time() - begun) * 1e3)
    return found[1:]


def by_size(folder: Path, repeats: int) -> Iterator[dict[str, Any]]:
    reader = CredentialReader()
    small = folder / "small.mp4"
    write_video(small, moving_texture(50, width_px=320, height_px=180))
    for size in SIZES_MIB:
        n_more = size * MIB - small.stat().st_size
        plain = small.read_bytes() + (n_more + 8).to_bytes(4) + b"mdat" + os.urandom(n_more)
        for name, data in (("none", plain), ("valid", signed(plain))):
            path = folder / f"{name}.mp4"
            path.write_bytes(data)
            with Counted(path) as stream:
                state = reader.read(cast(BinaryIO, stream), MP4)["c2pa"]
                n_bytes = stream.raw_file.n_bytes
                assert state == name, state
                read = cpu_ms(lambda s=stream: reader.read(cast(BinaryIO, s), MP4), repeats)  # type: ignore[misc]
            n, version = stat_source(str(path))
            probe = cpu_ms(lambda p=path, n=n, v=version: scan_source(str(p), n, v), repeats)  # type: ignore[misc]
            yield {"mib": size, "c2pa": name, "read_bytes": n_bytes, "ms": read, "probe_ms": probe}


def picture(kind: str) -> bytes:
    output = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    Image.fromarray(pixels).save(output, kind)
    return output.getvalue()


def boxes(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    start = 0
    while start < len(data):
        end = start + int.from_bytes(data[start : start + 4])
        yield data[start + 4 : start + 8], start, end
        start = end


def covered(plain: bytes, whole: bytes, kind: str) -> list[int]:
    """Positions of the signed file whose bytes the hash covers."""
    if kind == "mp4":
        own = [(a + 8, b) for name, a, b in boxes(whole) if name in (b"mdat", b"moov")]
        return [place for a, b in own for place in range(a, b)]
    # The manifest is one insertion, before the rest of the file.
    begin = next(n for n, (a, b) in enumerate(zip(plain, whole, strict=False)) if a != b)
    return [*range(16, begin - 16), *range(begin + len(whole) - len(plain) + 16, len(whole))]


def flips(folder: Path, n: int) -> Iterator[dict[str, Any]]:
    stage = ScanStage(ScanConfig(c2pa=True, media=("video", "image")), MEDIA)
    worker, draw = UnitWorker(stage=stage), random.Random(1)
    small = folder / "film.mp4"
    write_video(small, moving_texture(12, width_px=96, height_px=64))
    files = {"mp4": (small.read_bytes(), "video/mp4")}
    files |= {kind: (picture(kind), f"image/{kind}") for kind in ("jpeg", "png")}
    path = folder / "flipped"
    for kind, (plain, mime_type) in files.items():
        whole = signed(plain, mime_type)
        own = covered(plain, whole, kind)
        for where, places in (("covered", own), ("anywhere", range(len(whole)))):
            states: Counter[str] = Counter()
            for _ in range(n):
                data = bytearray(whole)
                data[draw.choice(places)] ^= 1 << draw.randrange(8)
                path.write_bytes(data)
                n_bytes, version = stat_source(str(path))
                source = SourceRef(uri=str(path), n_bytes=n_bytes, version=version)
                (row,) = worker([source]).results
                states[str(row.get("error_code") or row.get("c2pa") or "not checked")] += 1
            yield {"kind": kind, "flipped": where, "states": dict(sorted(states.items()))}


def real(folder: Path) -> dict[str, Any]:
    """States of all files of a folder, and CPU time beside that of their probes."""
    reader, states = CredentialReader(), Counter[str]()
    read_s = probe_s = 0.0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        n, version = stat_source(str(path))
        begun = time.process_time()
        row = scan_source(str(path), n, version, MEDIA)
        probed = time.process_time()
        if row.get("error_code") is not None:
            continue
        with path.open("rb") as stream:
            states[str(reader.read(stream, str(row["container"])).get("c2pa", "not checked"))] += 1
        probe_s, read_s = probe_s + probed - begun, read_s + time.process_time() - probed
    n_files = states.total()
    return {
        "states": dict(states), "read_ms": read_s / max(1, n_files) * 1e3,
        "probe_ms": probe_s / max(1, n_files) * 1e3,
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("media", nargs="?", type=Path, default=SHARED / "media")
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with work_folder(None) as folder:
        sizes = list(by_size(Path(folder), options.repeats))
        names = ("file", "C2PA", "read", "CPU-ms of the manifest", "CPU-ms of the probe")
        print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for row in sizes:
            print(
                f"| {row['mib']} MiB | {row['c2pa']} | {row['read_bytes'] / MIB:.2f} MiB | "
                f"{spread(row['ms'])} | {spread(row['probe_ms'])} |"
            )
        flipped = list(flips(Path(folder), options.flips))
        for row in flipped:
            print(f"{row['kind']}, {row['flipped']}: {row['states']}")
    found = real(options.media) if options.media.is_dir() else None
    print(f"{options.media}: {found or 'absent'}")
    tell({"sizes": sizes, "flips": flipped, "media": found})


if __name__ == "__main__":
    main()
