"""C2PA manifests: what holds, what does not, and nothing that ends the scan."""

import http.server
import io
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
from film_makers import write_video
from film_shots import moving_texture
from PIL import Image
from signed_films import CAPTURED, GENERATED, IPTC, ISSUER, TOOL, signed

from curator.errors import ErrorCode, SourceError
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Medium, SourceRef
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.content_credentials import CredentialReader
from curator.stages.scan.stage import ScanStage
from curator.storage import open_store, stat_source

MP4 = "mov,mp4,m4a,3gp,3g2,mj2"


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small MP4."""
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    write_video(path, moving_texture(8, width_px=64, height_px=48))
    return path.read_bytes()


@pytest.fixture(scope="module")
def reader() -> CredentialReader:
    return CredentialReader()


def read(reader: CredentialReader, data: bytes, container: str = MP4) -> dict[str, Any]:
    return dict(reader.read(cast(BinaryIO, io.BytesIO(data)), container))


def scanned(paths: Sequence[Path | str]) -> Iterator[Mapping[str, Any]]:
    """Rows of the scan, from a sandbox."""
    media = frozenset({Medium.VIDEO, Medium.IMAGE})
    worker = UnitWorker(stage=ScanStage(ScanConfig(c2pa=True, media=("video", "image")), media))
    for path in paths:
        n_bytes, version = stat_source(str(path))
        yield worker([SourceRef(uri=str(path), n_bytes=n_bytes, version=version)]).results[0]


def boxes(data: bytes) -> list[tuple[bytes, int, int]]:
    """Kind, start and end of the boxes of an MP4."""
    found, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4])
        found.append((data[start + 4 : start + 8], start, start + size))
        start += size
    return found


@pytest.mark.parametrize("kind", ["mp4", "jpg", "png", "webp", "avif"])
def test_a_sandbox_reads_the_manifests_of_each_container(
    kind: str, film: bytes, tmp_path: Path
) -> None:
    """Pins all columns with and without a manifest, and after a change of the picture."""
    plain, mime_type = film, "video/mp4"
    if kind != "mp4":
        output = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
        Image.fromarray(pixels).save(output, "jpeg" if kind == "jpg" else kind)
        plain, mime_type = output.getvalue(), f"image/{'jpeg' if kind == 'jpg' else kind}"
    whole = signed(plain, mime_type)
    altered = bytearray(whole)
    # The end of the picture's data, and of a PNG or WebP the chunk of the picture.
    at = whole.index(plain[len(plain) // 2 : len(plain) // 2 + 16])
    altered[at] ^= 1
    paths = [tmp_path / f"{name}.{kind}" for name in ("plain", "signed", "altered")]
    for path, data in zip(paths, (plain, whole, bytes(altered)), strict=True):
        path.write_bytes(data)
    names = ("c2pa", "c2pa_generated", "c2pa_issuer", "c2pa_tool")
    rows = [[row.get(name) for name in names] for row in scanned(paths)]
    assert rows == [
        ["none", None, None, None],
        ["valid", True, ISSUER, TOOL],
        ["invalid", True, ISSUER, TOOL],
    ]


def test_objects_of_a_bucket_are_read_by_ranges(film: bytes, s3_bucket: str) -> None:
    """Pins that a sandbox gets the manifest of an object through its parent."""
    place = open_store(f"s3://{s3_bucket}/films")
    place.write("signed.mp4", signed(film))
    (row,) = scanned([f"s3://{s3_bucket}/films/signed.mp4"])
    assert (row["c2pa"], row["c2pa_issuer"]) == ("valid", ISSUER)


def test_containers_without_manifests_and_recipes_without_c2pa_are_not_checked(
    film: bytes, reader: CredentialReader, tmp_path: Path
) -> None:
    assert read(reader, film, "matroska,webm") == {}
    path = tmp_path / "film.mp4"
    path.write_bytes(signed(film))
    n_bytes, version = stat_source(str(path))
    source = SourceRef(uri=str(path), n_bytes=n_bytes, version=version)
    (row,) = UnitWorker(stage=ScanStage(ScanConfig()))([source]).results
    assert "c2pa" not in row


def test_what_a_manifest_says_about_a_model(film: bytes, reader: CredentialReader) -> None:
    """Pins both source types, one of a camera, and an edit that only opens generated footage."""
    composite = f"{IPTC}compositeWithTrainedAlgorithmicMedia"
    for source_type, is_generated in ((GENERATED, True), (composite, True), (CAPTURED, False)):
        found = read(reader, signed(film, source_type=source_type))
        assert (found["c2pa"], found["c2pa_generated"]) == ("valid", is_generated), source_type
    for source_type, is_generated in ((GENERATED, True), (CAPTURED, False)):
        parent = signed(film, source_type=source_type)
        found = read(reader, signed(parent, parent=parent))
        assert (found["c2pa"], found["c2pa_generated"]) == ("valid", is_generated), source_type


def test_damaged_and_swapped_manifests_are_invalid(film: bytes, reader: CredentialReader) -> None:
    """Pins a file that is cut off, a manifest of another file, and another signature."""
    whole, other = signed(film), signed(film + boxes_of_free(64))
    spans = {kind: (start, end) for kind, start, end in boxes(whole)}
    start, end = spans[b"uuid"]
    (other_uuid,) = ((a, b) for kind, a, b in boxes(other) if kind == b"uuid")
    swapped = whole[:start] + other[slice(*other_uuid)] + whole[end:]
    # The signature is the end of the box of the claim's signature, before its padding.
    at = whole.index(b"c2pa.signature", start)
    signature = bytearray(whole)
    signature[at + 40 : end] = bytes(reversed(signature[at + 40 : end]))
    for name, data in (
        ("cut off in the picture", whole[: -len(whole) // 4]),
        ("cut off in the manifest", whole[: (start + end) // 2]),
        ("swapped", swapped),
        ("signature", bytes(signature)),
    ):
        assert read(reader, data).get("c2pa") == "invalid", name


def boxes_of_free(n_bytes: int) -> bytes:
    """A box without meaning, which C2PA does not hash, but which moves what it does."""
    return (n_bytes + 8).to_bytes(4) + b"mdat" + bytes(n_bytes)


def test_no_mutation_of_hashed_bytes_is_valid_and_none_ends_the_scan(
    film: bytes, tmp_path: Path
) -> None:
    """Pins 200 mutants in a sandbox: half of what the hash covers, half of any byte."""
    draw, whole = random.Random(3), signed(film)
    covered = [
        place
        for kind, start, end in boxes(whole)
        if kind in (b"mdat", b"moov")
        for place in range(start + 8, end)
    ]
    paths = []
    for number in range(200):
        data = bytearray(whole)
        place = draw.choice(covered) if number % 2 else draw.randrange(len(data))
        how = draw.randrange(3)
        if how == 0 or number % 2:
            data[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            del data[place:]
        else:
            data[place : place + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
        paths.append(tmp_path / f"{number}.mp4")
        paths[-1].write_bytes(data)
    states: Counter[tuple[int, object]] = Counter()
    for number, row in enumerate(scanned(paths)):
        code = row.get("error_code")
        assert code not in (ErrorCode.INTERNAL, ErrorCode.WORKER_DIED), (number, row)
        states[number % 2, row.get("c2pa") if code is None else "failed"] += 1
    assert {state for half, state in states if half} <= {"invalid", "failed"}, states
    assert states[1, "invalid"] > 50
    assert {state for _, state in states} <= {"valid", "invalid", "none", "failed", None}


def test_a_manifest_elsewhere_is_not_fetched(film: bytes, reader: CredentialReader) -> None:
    """Pins that a file which names an address causes no request."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        data = signed(film, remote=f"http://127.0.0.1:{server.server_port}/manifest.c2pa")
        assert read(reader, data) in ({}, {"c2pa": "none"})
        server.shutdown()
    assert asked == []


def test_an_error_of_reading_is_no_invalid_manifest(film: bytes, reader: CredentialReader) -> None:
    """Pins a connection that breaks within the hashed bytes."""

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 100:
                raise SourceError(ErrorCode.UNREADABLE, "the connection broke")
            return super().read(size)

    with pytest.raises(SourceError, match="the connection broke"):
        reader.read(cast(BinaryIO, Broken(signed(film))), MP4)
