"""Topics of MCAP files: which messages are read, and that no damage gives wrong or fewer rows."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_mcaps import OTHER, START_NS, TOPIC, write_json, write_ros2
from mcap.reader import make_reader
from mcap.writer import CompressionType, IndexType, Writer

from curator.storage import mcap_topics
from curator.storage.mcap_topics import McapFileError, read_topic
from curator.storage.timed_rows import RowsError, RowsReader

ROWS = [(START_NS + 25_000_000 * k, float(k)) for k in range(200)]
FIELDS = ("number", "inner.half", "position", "position.1")


def table(path: Path, topic: str = TOPIC, **options: Any) -> pa.Table:  # noqa: ANN401
    given = {"time": "header.stamp", "fields": FIELDS, "unit": "ns"} | options
    with path.open("rb") as stream:
        return read_topic(stream, topic, **given)


def plain(path: Path) -> Path:
    return write_json(path, ROWS, use_chunking=False, enable_data_crcs=True)


def without_summary(path: Path) -> Path:
    return write_json(
        path, ROWS, index_types=IndexType.NONE, repeat_channels=False, repeat_schemas=False,
        use_statistics=False, use_summary_offsets=False, enable_data_crcs=True,
    )  # fmt: skip


def uncompressed(path: Path) -> Path:
    return write_json(path, ROWS, compression=CompressionType.NONE)


def of_json(path: Path) -> Path:
    return write_json(path, ROWS)


def of_ros2(path: Path) -> Path:
    return write_ros2(path, ROWS)


@pytest.mark.parametrize("write", [of_json, of_ros2, plain, without_summary, uncompressed])
def test_a_row_for_each_message_in_every_layout(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcap_topics, "_BATCH_ROWS", 64)
    found = table(write(tmp_path / "a.mcap"))
    numbers = [float(k) for k in range(200)]
    assert found["header.stamp"].to_pylist() == [time for time, _ in ROWS]
    assert found["number"].to_pylist() == numbers
    assert found["inner.half"].to_pylist() == numbers
    assert found["position"].to_pylist() == [[k, k / 2] for k in numbers]
    assert found["position.1"].to_pylist() == [k / 2 for k in numbers]


def test_times_of_the_recorder(tmp_path: Path) -> None:
    for path in (of_json(tmp_path / "a.mcap"), of_ros2(tmp_path / "b.mcap")):
        logged = table(path, time="log_time")["log_time"].to_pylist()
        assert logged == [time + 10**6 for time, _ in ROWS]
        published = table(path, time="publish_time", fields=("publish_time",))["publish_time"]
        assert published.to_pylist() == [time for time, _ in ROWS]
    of_bytes = table(of_ros2(tmp_path / "c.mcap"), fields=("inner.bytes",))["inner.bytes"]
    assert of_bytes[0].as_py() == [1, 2, 3]


def test_chunks_of_other_topics_are_not_read(tmp_path: Path) -> None:
    """Pins that a log with pictures costs the bytes of its small topics."""
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=1000, compression=CompressionType.NONE)
        writer.start()
        small, large = (
            writer.register_channel(topic=topic, message_encoding="json", schema_id=0)
            for topic in (TOPIC, OTHER)
        )
        for k in range(50):
            writer.add_message(large, k, bytes(100_000), k)
            writer.add_message(small, k, b'{"number": 1}' + b" " * 1000, k)
        writer.finish()
    stream = Counting(path.read_bytes())
    found = read_topic(stream, TOPIC, "log_time", ["number"], unit="ns")
    assert found.num_rows == 50
    assert stream.n_bytes < 0.1 * path.stat().st_size


class Counting(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    n_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.n_bytes += len(data)
        return data


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "/arm"}, f"no topic '/arm'; there are {TOPIC}, {OTHER}"),
        ({"fields": ["speed"]}, "no field 'speed': no 'speed' in header, number, inner, position"),
        ({"fields": ["position.9"]}, "no field 'position.9': no '9' in a list"),
        ({"fields": ["number.x"]}, "no field 'number.x': no 'x' in a float"),
        ({"fields": ["inner"]}, "field 'inner' has fields: half.*; expected a number or a list"),
        ({"time": "inner"}, "time 'inner' has fields half.*; expected a number, or a stamp"),
        ({"unit": "s"}, "time 'header.stamp' is a stamp, in nanoseconds; expected unit: ns"),
    ],
)
@pytest.mark.parametrize("write", [of_json, of_ros2, without_summary])
def test_what_is_not_in_the_messages_is_named(
    write: Callable[[Path], Path], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    if write is of_ros2:
        words = words.replace(f", {OTHER}", "")
    with pytest.raises(McapFileError, match=words):
        table(write(tmp_path / "a.mcap"), **options)


def test_a_field_that_is_no_number_and_other_faults_of_a_table(tmp_path: Path) -> None:
    of_json(tmp_path / "a.mcap")
    source = str(tmp_path / "a.mp4")

    def reader(**changes: Any) -> RowsReader:  # noqa: ANN401
        given = {"time": "log_time", "unit": "ns", "columns": ["number"], "topic": TOPIC}
        return RowsReader(**({"table": "{stem}.mcap"} | given | changes))

    rows = reader(columns=["number", "position"]).rows(source)
    assert rows is not None
    assert rows.values.shape == (200, 3)
    assert rows.times.dtype == np.int64
    with pytest.raises(RowsError, match="'name' has type string; expected numbers"):
        reader(columns=["name"]).rows(source)
    with pytest.raises(RowsError, match=r"a.mcap': there is no topic '/x'; there are /arm"):
        reader(topic="/x").rows(source)
    assert reader(table="{folder}/a.mcap").table_of("s3://b/k/film.mp4") == "s3://b/k/a.mcap"
    assert reader().rows(str(tmp_path / "absent.mp4")) is None
    for changes, words in (
        ({"topic": None}, "expected a topic for .mcap"),
        ({"table": "{stem}.csv"}, "no topic for other tables"),
        ({"unit": "s"}, "log_time of an MCAP is in nanoseconds"),
        ({"table": "/all.mcap", "source": "file"}, "no rows of several sources"),
    ):
        with pytest.raises(RowsError, match=words):
            reader(**changes)


def test_frames_get_a_row_within_half_a_frame_of_a_log_at_another_rate(tmp_path: Path) -> None:
    """Pins times since 1970: float64 has no nanoseconds there."""
    for write in (write_json, write_ros2):
        write(tmp_path / "a.mcap", [(START_NS + 17_300_000 * k, k) for k in range(290)])
        reader = RowsReader(
            "{stem}.mcap", time="header.stamp", unit="ns", columns=["number"], topic=TOPIC
        )
        rows = reader.rows(str(tmp_path / "a.mp4"))
        assert rows is not None
        frames = np.arange(125) / 25
        found = rows.nearest(rows.seconds(START_NS, "ns"), frames, np.full(125, 0.02))[:, 0]
        assert np.abs(found * 0.0173 - frames).max() <= 0.0173 / 2 + 1e-9


@pytest.mark.parametrize("write", [of_json, of_ros2, plain, without_summary])
def test_no_damage_gives_other_rows(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Pins cut files and flipped bytes: an error, or all rows as they were.

    Without chunks or summary, the format has checksums only if the writer was told so.
    """
    whole = write(tmp_path / "a.mcap").read_bytes()
    expected = table(tmp_path / "a.mcap")
    damaged = tmp_path / "b.mcap"
    for n_bytes in (0, 7, 40, 2000, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        damaged.write_bytes(whole[:n_bytes])
        with pytest.raises(McapFileError):
            table(damaged)
    random = np.random.default_rng(1)
    n_refused = 0
    for at in random.integers(0, len(whole), 60):
        data = bytearray(whole)
        data[at] ^= 1 << int(random.integers(8))
        damaged.write_bytes(bytes(data))
        try:
            found = table(damaged)
        except McapFileError:
            n_refused += 1
        else:
            assert found.equals(expected), at
    assert n_refused > 10


def write_large(path: Path, compression: CompressionType, declared: int | None = None) -> Path:
    """A message of 500,013 bytes, in a chunk that declares to have another size."""
    with path.open("wb") as file:
        writer = Writer(file, compression=compression)
        writer.start()
        channel = writer.register_channel(topic=TOPIC, message_encoding="json", schema_id=0)
        writer.add_message(channel, 1, b'{"number": 1}' + b" " * 500_000, 1)
        writer.finish()
    if declared is not None:
        data = bytearray(path.read_bytes())
        summary = make_reader(io.BytesIO(data)).get_summary()
        assert summary is not None
        # Behind the head of the record and two times.
        at = summary.chunk_indexes[0].chunk_start_offset + 9 + 16
        data[at : at + 8] = struct.pack("<Q", declared)
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("compression", [CompressionType.ZSTD, CompressionType.LZ4])
def test_a_chunk_never_becomes_larger_than_it_declares_and_than_the_bound(
    compression: CompressionType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mcap"
    options = {"time": "log_time", "fields": ["number"]}
    assert table(write_large(path, compression), **options).num_rows == 1
    for declared, words in (
        (1_000, "declares 1,000 bytes has more: damaged"),
        (10**8, "declares 100,000,000 bytes has 500,"),
        (10**12, "chunk has 1,000,000,000,000 bytes; expected at most"),
    ):
        with pytest.raises(McapFileError, match=words):
            table(write_large(path, compression, declared), **options)
    write_large(path, compression)
    monkeypatch.setattr(mcap_topics, "MOST_MESSAGE_BYTES", 100)
    with pytest.raises(McapFileError, match="500,013 bytes; expected at most 100"):
        table(path, **options)


@pytest.mark.parametrize(
    ("encoding", "schema", "data", "words"),
    [
        ("json", b"", b"{", "logged at 7 does not decode: JSONDecodeError"),
        ("json", b"", b'{"number": 99999999999999999999999}', "."),
        (
            "protobuf",
            b"",
            b"",
            "in 'protobuf' with a schema in 'ros2msg'; expected 'json'",
        ),
        ("cdr", b"float64 number", b"\0\1\0\0\0", "logged at 7 does not decode"),
        ("cdr", b"Absent number", b"\0\1\0\0\0", "logged at 7 does not decode"),
        ("cdr", b"float64[0] number", b"\0\1\0\0\0", "its definition cannot be read"),
        ("cdr", b"State[] number", b"\0\1\0\0" + b"\1\0\0\0" * 5000, "RecursionError"),
    ],
)
def test_messages_that_do_not_decode(
    encoding: str, schema: bytes, data: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        number = writer.register_schema("made/State", "ros2msg", schema)
        channel = writer.register_channel(topic=TOPIC, message_encoding=encoding, schema_id=number)
        writer.add_message(channel, 7, data, 7)
        writer.finish()
    if words == ".":
        assert table(path, time="log_time", fields=["number"])["number"].to_pylist() == [1e23]
        return
    with pytest.raises(McapFileError, match=words):
        table(path, time="log_time", fields=["number"])


def test_a_message_of_json_may_lack_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel(topic=TOPIC, message_encoding="json", schema_id=0)
        for k, text in enumerate((b'{"x": 1}', b'{"x": null}', b'{"x": 1.5}')):
            writer.add_message(channel, k, text, k)
        writer.finish()
    reader = RowsReader("{stem}.mcap", time="log_time", unit="ns", columns=["x"], topic=TOPIC)
    rows = reader.rows(str(tmp_path / "a.mp4"))
    assert rows is not None
    np.testing.assert_array_equal(rows.values[:, 0], [1, np.nan, 1.5])
