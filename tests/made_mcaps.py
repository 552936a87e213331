"""MCAP files with messages in JSON or of ROS 2."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mcap.writer import CompressionType, Writer
from mcap_ros2.writer import Writer as Ros2Writer

TOPIC, OTHER = "/arm/state", "/camera/info"
DEFINITION = """\
std_msgs/Header header
float64 number
Inner inner
float64[] position
string name
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: made/Inner
int32 half
uint8[3] bytes
"""
START_NS = 1_760_000_000_123_456_789

Row = tuple[int, float]
"""Time in nanoseconds, and a number."""


def body(time_ns: int, number: float) -> dict[str, Any]:
    """A message: its stamp is the time, and its number is everywhere."""
    seconds, nanoseconds = divmod(time_ns, 10**9)
    return {
        "header": {"stamp": {"sec": seconds, "nanosec": nanoseconds}, "frame_id": "base"},
        "number": float(number),
        "inner": {"half": int(number), "bytes": b"\x01\x02\x03"},
        "position": [float(number), number / 2],
        "name": "arm",
    }


def write_json(path: Path, rows: Iterable[Row], **options: Any) -> Path:  # noqa: ANN401
    """Writes JSON; messages were logged 1 ms after they were published, at the row's time."""
    with path.open("wb") as file:
        writer = Writer(file, **({"chunk_size": 2048} | options))
        writer.start()
        channels = [
            writer.register_channel(topic=topic, message_encoding="json", schema_id=0)
            for topic in (OTHER, TOPIC)
        ]
        writer.add_message(channels[0], 0, b"{}", 0)
        for time_ns, number in rows:
            data = json.dumps(body(time_ns, number) | {"inner": {"half": int(number)}}).encode()
            writer.add_message(channels[1], time_ns + 10**6, data, time_ns)
        writer.finish()
    return path


def write_ros2(path: Path, rows: Iterable[Row], *, chunk_size: int = 2048) -> Path:
    """Writes messages of ROS 2 as a recorder does."""
    with path.open("wb") as file:
        writer = Ros2Writer(file, compression=CompressionType.LZ4, chunk_size=chunk_size)
        schema = writer.register_msgdef("made/State", DEFINITION)
        for time_ns, number in rows:
            writer.write_message(
                TOPIC, schema, body(time_ns, number), log_time=time_ns + 10**6, publish_time=time_ns
            )
        writer.finish()
    return path
