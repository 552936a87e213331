"""Reads side tars along with the samples."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from curator.dataset.tar_reader import Member, ShardSet, TarReader
from curator.errors import CuratorError, ShardError
from curator.tools.verify.findings import FindingCode, Findings


@dataclass(frozen=True, slots=True)
class SideMember:
    """A member in a side tar."""

    member: Member
    where: str
    data: bytes | None
    """None for a member that is larger than values may be."""


class SideReader:
    """Reads the tar with the member `suffix` of some samples from start to end.

    Its members have the keys of samples, in the order of the samples; it adds a finding for each
    fault.

    Args:
        shards: The set of shards that names the tar.
        suffix: The member.
        entry: What the manifest says of the tar.
        max_bytes: Larger members are not read into memory.
        stack: Closes the stream.
    """

    def __init__(
        self,
        shards: ShardSet,
        suffix: str,
        entry: Mapping[str, Any],
        findings: Findings,
        max_bytes: int,
        stack: ExitStack,
    ) -> None:
        self.suffix, self._entry, self._findings = suffix, entry, findings
        self._max_bytes, self._sha256 = max_bytes, hashlib.sha256()
        self._path = shards.uri(entry["name"])
        self._n_read, self._is_whole = 0, False
        self._next: SideMember | None = None
        name = entry["name"]
        # `check_objects` reports a missing file.
        self._is_there = name in shards.sizes
        if self._is_there:
            try:
                self._stream = stack.enter_context(shards.store.open(shards.key(name)))
            except CuratorError as error:
                self._fault(FindingCode.UNREADABLE, str(error), "a readable object")
                self._is_there = False
        self._members = self._read(shards.sizes.get(name, 0))
        self._advance()

    def of_sample(self, key: str) -> Iterator[SideMember]:
        """Yields the members of the next sample."""
        while self._next is not None and self._next.member.key == key:
            yield self._next
            self._advance()

    def finish(self) -> None:
        """Reads the rest, and compares the tar with the manifest."""
        if self._next is not None:
            found = f"the member {self._next.member.name!r}"
            self._fault(FindingCode.KEY, found, "keys of samples, in their order")
            self._next = None
        elif self._is_whole:
            counts = {"samples": self._n_read}
            self._findings.compare(FindingCode.COUNT, self._path, counts, {**self._entry})
            while self._take(1 << 20):
                pass
            if (sha256 := self._sha256.hexdigest()) != self._entry["sha256"]:
                self._fault(FindingCode.HASH, f"sha256 {sha256}", str(self._entry["sha256"]))

    def _advance(self) -> None:
        self._next = next(self._members, None)

    def _read(self, n_bytes: int) -> Iterator[SideMember]:
        if not self._is_there:
            return
        try:
            reader = TarReader(self._take, n_bytes)
            for member in reader:
                if member.suffix != self.suffix:
                    found = f"the member {member.name!r}"
                    self._fault(FindingCode.MEMBERS, found, f"only members {self.suffix}")
                    continue
                self._n_read += 1
                data = reader.read(member) if member.bytes <= self._max_bytes else None
                yield SideMember(member, f"{self._path}#{member.name}", data)
            self._is_whole = True
        except ShardError as error:
            self._fault(FindingCode.TAR_DAMAGED, str(error), "a whole tar")
        except (CuratorError, OSError) as error:
            self._fault(FindingCode.UNREADABLE, str(error), "a readable object")

    def _take(self, n_bytes: int) -> bytes:
        data = self._stream.read(n_bytes)
        self._sha256.update(data)
        return data

    def _fault(self, code: FindingCode, found: str, expected: str) -> None:
        self._findings.add(code, self._path, found, expected)
