"""Reads the messages of a topic of an MCAP file as a table, such as a log of ROS 2 or Foxglove.

The package `mcap` reads records, and `mcap_ros2` decodes messages of ROS 2. Chunks are decompressed
here, because the package allocates what a chunk claims to need.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

if TYPE_CHECKING:
    import pyarrow as pa
    from mcap.records import Channel, Chunk, ChunkIndex, McapRecord, Message, Schema

MESSAGE_TIMES = ("log_time", "publish_time")
"""Names of the times that MCAP itself gives a message, in nanoseconds."""
MOST_CHUNK_BYTES = 1 << 27
"""Of a record, and of a chunk after decompression. Recorders write chunks of 1 to 4 MB."""
MOST_MESSAGE_BYTES = 1 << 20
"""Of a message that is decoded: as objects, it may take a hundred times its bytes."""
_BATCH_ROWS = 65_536


class McapFileError(ValueError):
    """A file is damaged, or lacks what is asked for; the message leaves out the file's name."""


def read_topic(
    stream: BinaryIO, topic: str, time: str, fields: Sequence[str], *, unit: str
) -> "pa.Table":
    """Returns times and fields of the messages of a topic, a row for each message.

    If the file has a summary, only chunks with messages of the topic are read.

    Args:
        stream: A seekable file.
        topic: Its messages are in JSON, or in CDR with a definition of ROS 2.
        time: `log_time`, `publish_time`, or a field with a number or a stamp, which has seconds
            and nanoseconds.
        fields: Paths of fields, such as `pose.position.x`, `position` or `position.0`.
        unit: Unit of the times; `ns` unless they are numbers of a field.

    Returns:
        Columns by `time` and `fields`. A field with a list of numbers is a column of lists.

    Raises:
        McapFileError: The file is damaged or too large, or has no such topic, encoding or field.
        SourceError: The file cannot be read.
    """
    import pyarrow as pa

    names = tuple(dict.fromkeys((time, *fields)))
    tables, values = [], dict[str, list[Any]]((name, []) for name in names)
    try:
        for message, decoded in _decoded(stream, topic):
            for name, column in values.items():
                is_time = name == time
                column.append(
                    _time(message, decoded, name, unit) if is_time else _leaf(decoded, name)
                )
            if len(values[time]) == _BATCH_ROWS:
                tables.append(pa.table(values))
                values = {name: [] for name in names}
        tables.append(pa.table(values))
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, OverflowError) as error:
        raise McapFileError(
            f"topic {topic!r}: fields are not numbers of one kind: {error}"
        ) from error


def _decoded(stream: BinaryIO, topic: str) -> Iterator[tuple["Message", Any]]:
    """Yields the messages of a topic with their contents."""
    from mcap.records import Channel, Message, Schema

    schemas: dict[int, Schema] = {}
    channels: dict[int, Channel] = {}
    decoders: dict[int, Callable[[bytes], Any]] = {}
    for record in _records(stream, topic):
        if isinstance(record, Schema):
            schemas[record.id] = record
        elif isinstance(record, Channel):
            channels[record.id] = record
        elif isinstance(record, Message):
            channel = channels.get(record.channel_id)
            if channel is None:
                raise McapFileError(f"a message has no channel {record.channel_id}: damaged")
            if channel.topic == topic:
                if channel.id not in decoders:
                    decoders[channel.id] = _decoder(channel, schemas.get(channel.schema_id))
                yield record, _contents(record, topic, decoders[channel.id])
    _check_topic(topic, channels)


def _check_topic(topic: str, channels: Mapping[int, "Channel"]) -> None:
    topics = sorted({channel.topic for channel in channels.values()})
    if topic not in topics:
        raise McapFileError(f"there is no topic {topic!r}; there are {', '.join(topics) or 'none'}")


def _records(stream: BinaryIO, topic: str) -> Iterator["McapRecord"]:
    """Yields schemas, channels and messages, of which at least those of the topic."""
    from mcap.exceptions import McapError

    try:
        yield from _unwrapped(stream, topic)
    except McapFileError:
        raise
    # What the package raises for damage: its own errors, and those of `struct` and `str`.
    except (McapError, struct.error, ValueError, StopIteration) as error:
        words = str(error) or "it ends too early"
        raise McapFileError(
            f"it is damaged ({type(error).__name__}: {words}); `mcap recover` copies what is intact"
        ) from error


def _unwrapped(stream: BinaryIO, topic: str) -> Iterator["McapRecord"]:
    from mcap.records import Channel, ChunkIndex, Message, Schema, Statistics

    summary = _summary(stream)
    channels = {record.id: record for record in summary if isinstance(record, Channel)}
    indexes = [record for record in summary if isinstance(record, ChunkIndex)]
    own = {channel.id for channel in channels.values() if channel.topic == topic}
    if channels:
        _check_topic(topic, channels)
    if channels and indexes:
        yield from (record for record in summary if isinstance(record, Schema | Channel))
        stored = _chunks(stream, indexes, own)
    else:
        stored = _records_from(stream, 0)
    n_messages = 0
    for record in chain.from_iterable(map(_unpacked, stored)):
        n_messages += isinstance(record, Message) and record.channel_id in own
        yield record
    for record in summary:
        if isinstance(record, Statistics) and own:
            n_expected = sum(record.channel_message_counts.get(number, 0) for number in own)
            if n_messages != n_expected:
                raise McapFileError(
                    f"topic {topic!r} has {n_messages} messages, and its summary says {n_expected}:"
                    " damaged; `mcap recover` writes another summary"
                )


def _chunks(
    stream: BinaryIO, indexes: Sequence["ChunkIndex"], own: Set[int]
) -> Iterator["McapRecord"]:
    """Yields the chunks that may have messages of the channels `own`."""
    from mcap.records import Chunk

    for index in sorted(indexes, key=lambda index: index.chunk_start_offset):
        if index.message_index_offsets and own.isdisjoint(index.message_index_offsets):
            continue
        chunk = next(_records_from(stream, index.chunk_start_offset), None)
        if not isinstance(chunk, Chunk):
            raise McapFileError(f"there is no chunk at {index.chunk_start_offset}: damaged index")
        yield chunk


def _summary(stream: BinaryIO) -> list["McapRecord"]:
    """Returns the records of the summary; none if the file has no summary."""
    from mcap.reader import FOOTER_SIZE
    from mcap.records import Footer
    from mcap.stream_reader import MAGIC_SIZE

    size = stream.seek(0, 2)
    if size < FOOTER_SIZE + 2 * MAGIC_SIZE:
        raise McapFileError(f"it has {size} bytes: no MCAP file")
    footer = next(_records_from(stream, size - FOOTER_SIZE - MAGIC_SIZE), None)
    if not isinstance(footer, Footer):
        raise McapFileError("it ends without a footer; `mcap recover` copies what is intact")
    return list(_records_from(stream, footer.summary_start)) if footer.summary_start else []


def _records_from(stream: BinaryIO, offset: int) -> Iterator["McapRecord"]:
    """Yields the stored records from an offset to the footer; chunks are not opened."""
    from mcap.stream_reader import StreamReader

    stream.seek(offset)
    whole = offset == 0
    reader = StreamReader(
        stream, skip_magic=not whole, emit_chunks=True, validate_crcs=whole,
        record_size_limit=MOST_CHUNK_BYTES,
    )  # fmt: skip
    return reader.records


def _unpacked(chunk: "McapRecord") -> Sequence["McapRecord"]:
    """Returns the records in a chunk; another record itself."""
    from mcap.records import Chunk
    from mcap.stream_reader import breakup_chunk

    if not isinstance(chunk, Chunk):
        return (chunk,)
    if chunk.uncompressed_size > MOST_CHUNK_BYTES:
        raise McapFileError(
            f"a chunk has {chunk.uncompressed_size:,} bytes; expected at most "
            f"{MOST_CHUNK_BYTES:,}: write the file again with smaller chunks"
        )
    data = _decompressed(chunk)
    if len(data) != chunk.uncompressed_size:
        raise McapFileError(
            f"a chunk that declares {chunk.uncompressed_size:,} bytes has "
            f"{'more' if len(data) > chunk.uncompressed_size else f'{len(data):,}'}: damaged"
        )
    return breakup_chunk(replace(chunk, compression="", data=data), validate_crc=True)


def _decompressed(chunk: "Chunk") -> bytes:
    """Decompresses a chunk up to one byte more than it declares."""
    import lz4.frame
    import zstandard

    most = chunk.uncompressed_size + 1
    try:
        if chunk.compression == "zstd":
            return zstandard.ZstdDecompressor().stream_reader(chunk.data).read(most)
        if chunk.compression == "lz4":
            data: bytes = lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=most)
            return data
    except (zstandard.ZstdError, RuntimeError) as error:
        raise McapFileError(f"a chunk does not decompress: {error}") from error
    if chunk.compression:
        raise McapFileError(f"compression {chunk.compression!r}; expected zstd, lz4 or none")
    return chunk.data


def _decoder(channel: "Channel", schema: "Schema | None") -> Callable[[bytes], Any]:
    """Returns the function that decodes the messages of a channel."""
    from mcap_ros2.decoder import DecoderFactory

    if channel.message_encoding == "json":
        return orjson.loads
    try:
        decode = DecoderFactory().decoder_for(channel.message_encoding, schema)
    # The parser of definitions raises errors of many types.
    except Exception as error:
        raise McapFileError(
            f"topic {channel.topic!r}: its definition cannot be read: {error!r}"
        ) from error
    if decode is None:
        by = f"{schema.encoding!r}" if schema is not None else "none"
        raise McapFileError(
            f"topic {channel.topic!r} has messages in {channel.message_encoding!r} with a schema "
            f"in {by}; expected 'json', or 'cdr' with 'ros2msg': convert the topic to Parquet"
        )
    return decode


def _contents(message: "Message", topic: str, decode: Callable[[bytes], Any]) -> Any:  # noqa: ANN401
    words = f"topic {topic!r}: the message logged at {message.log_time}"
    if len(message.data) > MOST_MESSAGE_BYTES:
        raise McapFileError(
            f"{words} has {len(message.data):,} bytes; expected at most {MOST_MESSAGE_BYTES:,}"
        )
    try:
        return decode(message.data)
    # Decoders raise errors of many types on damaged data.
    except Exception as error:
        raise McapFileError(f"{words} does not decode: {error!r}") from error


def _time(message: "Message", decoded: Any, name: str, unit: str) -> Any:  # noqa: ANN401
    if name in MESSAGE_TIMES:
        return getattr(message, name)
    stamp = _children(_field(decoded, name))
    if stamp is None:
        return _leaf(decoded, name)
    nanoseconds = stamp.get("nanosec", stamp.get("nsec"))
    if not isinstance(stamp.get("sec"), int) or not isinstance(nanoseconds, int):
        raise McapFileError(
            f"time {name!r} has fields {', '.join(stamp)}; expected a number, or a stamp with sec "
            "and nanosec"
        )
    if unit != "ns":
        raise McapFileError(f"time {name!r} is a stamp, in nanoseconds; expected unit: ns")
    return stamp["sec"] * 1_000_000_000 + nanoseconds


def _leaf(decoded: Any, path: str) -> Any:  # noqa: ANN401
    """Returns a number, a list of numbers, or whatever else is no message."""
    value = _field(decoded, path)
    if (children := _children(value)) is not None:
        raise McapFileError(
            f"field {path!r} has fields: {', '.join(children)}; expected a number or a list of "
            "numbers: name one of these fields"
        )
    return list(value) if isinstance(value, bytes) else value


def _field(decoded: Any, path: str) -> Any:  # noqa: ANN401
    value = decoded
    for part in path.split("."):
        children = _children(value)
        if children is not None and part in children:
            value = children[part]
        elif isinstance(value, list | bytes) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            has = ", ".join(children) if children is not None else f"a {type(value).__name__}"
            raise McapFileError(f"there is no field {path!r}: no {part!r} in {has}")
    return value


def _children(value: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    """Returns the fields of a message by name; None for values of other types."""
    if isinstance(value, dict):
        return value
    if isinstance(value, SimpleNamespace):
        # Messages of ROS have slots for their fields.
        return {name: getattr(value, name) for name in getattr(value, "__slots__", ())}
    return None
