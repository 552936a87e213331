"""Bits that flip on the way over plain HTTP are found: no probe, track or clip is made of them.

All pin problem 9 of trust: at e0fe287 what came was stored.
"""

import base64
import hashlib
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fault_proxy import FaultProxy
from film_makers import write_video
from film_shots import moving_texture

from curator.errors import ErrorCode, SourceError, StorageError
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.stage import AnalyzeStage, HashStage
from curator.stages.scan.probe import scan_source
from curator.storage import (
    ContentHashes,
    HashingReader,
    open_source,
    open_store,
    read_proven,
    s3_client,
    s3_store,
    stat_source,
)
from curator.storage.range_reader import AGREEING_READS
from curator.tables.track_items import HashItem, SourceItem


@pytest.fixture
def flips(
    s3_endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    with FaultProxy(server=s3_endpoint, share=0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A film whose index is at its end, and whose sound is in between."""
    path = tmp_path_factory.mktemp("flipped") / "film.mp4"
    frames = moving_texture(50, seed=1, width_px=320, height_px=180)
    write_video(path, frames, fps=Fraction(25), options={"crf": "5"}, audio_tone_s=2.0)
    return path.read_bytes()


@pytest.fixture
def source(flips: FaultProxy, s3_bucket: str, film: bytes) -> SourceRef:
    s3_client.client().put_object(Bucket=s3_bucket, Key="film.mp4", Body=film)
    uri = f"s3://{s3_bucket}/film.mp4"
    n_bytes, version = stat_source(uri)
    return SourceRef(uri=uri, n_bytes=n_bytes, version=version, source_id="film")


def analyzed(source: SourceRef) -> Track | Failure:
    families = frozenset({"frames"})
    worker = UnitWorker(stage=AnalyzeStage(AnalyzeConfig(device="cpu"), families=families))
    (result,) = worker([SourceItem(source=source, families=families)]).results
    assert isinstance(result, Track | Failure)
    return result


def often(seed: int) -> Any:  # noqa: ANN401
    chance = random.Random(seed)
    return lambda kind, number: chance.randrange(1 << 20) if chance.random() < 0.4 else None


def test_a_probe_is_of_ranges_that_agree(source: SourceRef, flips: FaultProxy) -> None:
    right = scan_source(source.uri, source.n_bytes, source.version)
    for seed in range(5):
        flips.choose = often(seed)
        assert scan_source(source.uri, source.n_bytes, source.version) == right
    assert flips.counts["chosen"] > 3


@pytest.mark.parametrize("seed", range(3))
def test_a_track_is_of_the_objects_own_bytes(
    source: SourceRef, film: bytes, flips: FaultProxy, seed: int
) -> None:
    flips.choose = often(seed)
    track = analyzed(source)
    assert isinstance(track, Track)
    assert flips.counts["chosen"] > 0
    assert track.sha256 == hashlib.sha256(film).hexdigest()
    assert (track.n_frames, track.n_decode_errors) == (50, 0)


def test_an_object_that_came_whole_is_read_once(source: SourceRef, flips: FaultProxy) -> None:
    sizes: list[int] = []
    flips.choose = lambda kind, number: sizes.append(number)
    assert isinstance(analyzed(source), Track)
    reads = len(sizes)
    with open_source(source.uri, expected_version=source.version) as reader:
        reader.read()
    assert reads <= len(sizes) - reads + 2


@pytest.mark.parametrize("key", ["film.mp4", "parts.mp4"])
def test_a_hash_is_of_the_objects_own_bytes(
    source: SourceRef, film: bytes, flips: FaultProxy, s3_bucket: str, key: str
) -> None:
    """Pins that an object whose ETag is no MD5, as of an upload in parts, is read twice."""
    client = s3_client.client()
    upload = client.create_multipart_upload(Bucket=s3_bucket, Key="parts.mp4")["UploadId"]
    where = {"Bucket": s3_bucket, "Key": "parts.mp4", "UploadId": upload}
    part = client.upload_part(PartNumber=1, Body=film, **where)
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
    client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **where)
    uri = f"s3://{s3_bucket}/{key}"
    n_bytes, version = stat_source(uri)
    assert ("-1" in version) == (key == "parts.mp4")
    item = HashItem(source=SourceRef(uri=uri, n_bytes=n_bytes, version=version))
    for seed in range(4):
        flips.choose = often(seed)
        ((_, sha256),) = UnitWorker(stage=HashStage(AnalyzeConfig()))([item]).results
        assert sha256 == hashlib.sha256(film).hexdigest()
    assert flips.counts["chosen"] > 0


def test_an_index_that_was_read_out_of_order_is_proven_too(
    source: SourceRef, film: bytes, flips: FaultProxy
) -> None:
    """Pins that a flip in a first read is not hidden by the hash of a second one."""
    flips.choose = often(7)

    def use(reader: Any) -> tuple[bytes, ContentHashes]:  # noqa: ANN401
        hashing = HashingReader(reader, gap_bytes=0, closes=False)
        hashing.seek(len(film) - 1000)
        tail = hashing.read(1000)
        hashing.seek(0)
        hashing.read(5000)
        hashing.seek(2500)
        hashing.read(5000)
        return tail, hashing.finish()

    tail, hashes = read_proven(source.uri, source.version, use)
    assert tail == film[-1000:]
    assert hashes.sha256 == hashlib.sha256(film).hexdigest()


def test_a_network_that_changes_every_read_is_an_error_that_is_not_stored(
    source: SourceRef, flips: FaultProxy
) -> None:
    flips.choose = lambda kind, number: number * 7
    failure = analyzed(source)
    assert isinstance(failure, Failure)
    assert failure.code is ErrorCode.UNREADABLE
    assert f"{AGREEING_READS} reads of the same bytes all differ" in failure.message
    with pytest.raises(SourceError):
        open_source(source.uri)


def test_objects_of_outputs_are_read_until_they_agree(flips: FaultProxy, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/out")
    data = random.Random(1).randbytes(300_000)
    store.write("a", data)
    for seed in range(5):
        flips.choose = often(seed)
        assert store.read("a") == data
        with store.open("a") as reader:
            assert reader.read() == data
    assert flips.counts["chosen"] > 0


def test_uploads_have_a_sum_that_servers_check(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test checks it, because moto does not: Ceph answers `BadDigest`."""
    flips = FaultProxy(server="")
    monkeypatch.setattr(s3_store, "PART_BYTES", 5 << 20)
    sent: list[str] = []

    def check(kind: str, real: Any) -> Any:  # noqa: ANN401
        def request(*, Body: bytes, ContentMD5: str, **options: Any) -> Any:  # noqa: ANN401, N803
            data = flips.changed("PUT", bytes(Body))
            if base64.b64encode(hashlib.md5(data).digest()).decode() != ContentMD5:
                sent.append("flipped")
                raise ClientError({"Error": {"Code": "BadDigest"}}, kind)
            sent.append(kind)
            return real(Body=Body, **options)

        return request

    client = s3_client.client()
    for kind in ("put_object", "upload_part"):
        monkeypatch.setattr(client, kind, check(kind, getattr(client, kind)))
    store = open_store(f"s3://{s3_bucket}/out")
    flips.choose = lambda kind, number: 3 if kind == "PUT" and number in (0, 2) else None
    store.write("a", b"12345")
    with store.create("b") as stream:
        stream.write(bytes(6 << 20))
    assert sent == ["flipped", "put_object", "flipped", "upload_part", "upload_part"]
    assert store.read("a") == b"12345"
    assert store.read("b") == bytes(6 << 20)
    flips.choose = lambda kind, number: 3 if kind == "PUT" else None
    with pytest.raises(StorageError, match="BadDigest"):
        store.write("a", b"12345")
