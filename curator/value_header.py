"""The header of a stored value: the inputs from which it was computed.

A header is in the metadata of a safetensors file, or in the comment of a video. The fingerprint
says which code, settings and weights made the value; the header says for which frames and texts,
and which bytes. A reader has only a sample, and checks the value against it.
"""

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import orjson

from curator.errors import CuratorError

HASH = "sha256"
"""Name of the hash of the value's bytes, beside the header."""
_MP4, _FAMILY, _FRAMES, _COLUMN = "mp4_sha256", "family", "frames", "column "
_LENGTH = struct.Struct("<Q")
_IN_SAMPLES = frozenset({"caption"})
"""Columns that a sample's JSON has with the same values; it rounds scores."""


class HeaderError(CuratorError):
    """A value has no header, or does not belong to its sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueHeader:
    """The inputs of a value.

    Attributes:
        mp4_sha256: SHA-256 of the clip's MP4, in hex; empty for a value that depends on no frames.
        fingerprint: Fingerprint of the family, from `FamilyVersion`.
        frames: Numbers of the first frames of windows, or of the requested frames; None if the
            value has neither windows nor requested frames.
        fps: Frames per second of the clip, for videos; it is not stored.
        columns: SHA-256 of each column that the annotator read, by name, from `column_digest`.
    """

    fingerprint: str
    mp4_sha256: str = ""
    frames: tuple[int, ...] | None = None
    fps: Fraction | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def to_metadata(self) -> dict[str, str]:
        """Returns the header as texts by name."""
        frames = {} if self.frames is None else {_FRAMES: orjson.dumps(self.frames).decode()}
        mp4 = {_MP4: self.mp4_sha256} if self.mp4_sha256 else {}
        columns = {f"{_COLUMN}{name}": digest for name, digest in self.columns.items()}
        return {_FAMILY: self.fingerprint} | mp4 | frames | columns

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], digest: str) -> "ValueHeader":
        """Reads what `to_metadata` returned, with the hash of the value's bytes as `sha256`.

        Raises:
            HeaderError: There is no header, or the hash is not `digest`, that of the bytes now.
        """
        try:
            frames = metadata.get(_FRAMES)
            header = cls(
                fingerprint=metadata[_FAMILY],
                mp4_sha256=metadata.get(_MP4, ""),
                frames=None if frames is None else tuple(orjson.loads(frames)),
                columns={
                    name.removeprefix(_COLUMN): value
                    for name, value in metadata.items()
                    if name.startswith(_COLUMN)
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HeaderError(f"no header ({error!r})") from error
        if (told := str(metadata.get(HASH))) != digest:
            raise HeaderError(
                f"the value's bytes have the SHA-256 {digest[:12]}…, and its header has "
                f"{told[:12]}…"
            )
        return header

    def in_safetensors(self, tensor: bytes) -> dict[str, str]:
        """Returns metadata for safetensors; `tensor` has the bytes of the tensor."""
        return self.to_metadata() | {HASH: hashlib.sha256(tensor).hexdigest()}

    @classmethod
    def of_safetensors(cls, data: bytes | memoryview) -> "ValueHeader":
        """Reads the header of a safetensors file, and compares the tensor's bytes with its hash.

        Raises:
            HeaderError: There is no header, or the bytes have another hash.
        """
        try:
            (length,) = _LENGTH.unpack_from(data)
            metadata = orjson.loads(data[_LENGTH.size : _LENGTH.size + length])["__metadata__"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise HeaderError(f"no header ({error!r})") from error
        digest = hashlib.sha256(memoryview(data)[_LENGTH.size + length :]).hexdigest()
        return cls.from_metadata(metadata, digest)

    def check(self, fingerprints: Collection[str], sample: Mapping[str, Any]) -> None:
        """Raises `HeaderError` if the value does not belong to a sample.

        Args:
            fingerprints: Fingerprints of the family in manifests; empty if there are none.
            sample: The sample's JSON.
        """
        if fingerprints and self.fingerprint not in fingerprints:
            others = ", ".join(f"{each[:12]}…" for each in sorted(fingerprints))
            raise HeaderError(
                f"the family is {self.fingerprint[:12]}… in the value, and {others} in the manifest"
            )
        if self.mp4_sha256 and self.mp4_sha256 != sample["mp4_sha256"]:
            raise HeaderError(
                f"computed from the MP4 {self.mp4_sha256[:12]}…, and the sample has "
                f"{sample['mp4_sha256'][:12]}…"
            )
        for name in _IN_SAMPLES & self.columns.keys() & sample.keys():
            if self.columns[name] != column_digest(sample[name]):
                raise HeaderError(f"computed from another {name} than {sample[name]!r:.60}")


def sorted_safetensors(data: bytes) -> bytes:
    """Returns a safetensors file with the names in its header sorted.

    The library writes metadata in another order in each process, so equal values would have
    different bytes.
    """
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    header = orjson.dumps(orjson.loads(data[_LENGTH.size : begin]), option=orjson.OPT_SORT_KEYS)
    header += b" " * (-len(header) % _LENGTH.size)
    return _LENGTH.pack(len(header)) + header + data[begin:]


def column_digest(value: Any) -> str:  # noqa: ANN401 - any value of a column
    """Returns the SHA-256 of a value of a column, which is JSON or a vector of numbers.

    An empty text is none, because samples have an empty caption for none.
    """
    if isinstance(value, np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    known = None if value == "" else value
    return hashlib.sha256(orjson.dumps(known, option=orjson.OPT_SORT_KEYS)).hexdigest()
