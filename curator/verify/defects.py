"""Groups findings by the object at fault, since one damaged tar fails several checks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from curator.verify.findings import MAX_STORED, Finding, FindingCode

_OF_BYTES = frozenset(
    {
        FindingCode.MISSING,
        FindingCode.UNREADABLE,
        FindingCode.SIZE,
        FindingCode.HASH,
        FindingCode.TAR_DAMAGED,
    }
)
"""Codes of objects with wrong bytes. An index that differs from such an object may be right."""
_OF_SAMPLES = frozenset(
    {
        FindingCode.KEY_TWICE,
        FindingCode.MEMBERS,
        FindingCode.JSON,
        FindingCode.MP4_HASH,
        FindingCode.MP4_HEADER,
        FindingCode.FRAMES,
        FindingCode.DATASET,
        FindingCode.CLIPS,
    }
)
_OF_TABLES = (FindingCode.DATASET, FindingCode.CLIPS)
ROW_OF = "a row of "
"""Prefix of the expectation in findings of samples without a row in a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """An object at fault with its findings, cause first."""

    path: str
    findings: Sequence[Finding]
    samples: frozenset[str]
    """Keys of the affected samples."""

    @property
    def is_warning(self) -> bool:
        """Whether all findings are warnings."""
        return all(finding.is_warning for finding in self.findings)


def defects(findings: Iterable[Finding]) -> list[Defect]:
    """Groups findings by object, in the order of each object's first finding.

    Differences between an index or table and a tar with wrong bytes count for the tar.
    """
    findings = list(findings)
    damaged = {f.path for f in findings if f.code in _OF_BYTES}
    tars = {path for path in damaged if path.endswith(".tar")}
    keys = {
        f.path.partition("#")[2]: tar
        for f in findings
        if f.code in _OF_SAMPLES and (tar := f.path.partition("#")[0]) in tars
    }
    by_object: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_object[_object_at_fault(finding, damaged, tars, keys)].append(finding)
    return [
        Defect(
            path=path,
            # The stable sort keeps the order of codes, which begins with causes.
            findings=sorted(group, key=lambda finding: finding.path != path),
            samples=frozenset(
                part.partition(".")[0]
                for finding in group
                if finding.code in _OF_SAMPLES and (part := finding.path.partition("#")[2])
            ),
        )
        for path, group in by_object.items()
    ]


def is_truncated(defect: Defect, counts: Mapping[str, int]) -> bool:
    """Returns whether findings of the defect's codes were counted but not stored."""
    return any(counts.get(str(finding.code), 0) > MAX_STORED for finding in defect.findings)


def _object_at_fault(
    finding: Finding, damaged: set[str], tars: set[str], keys: Mapping[str, str]
) -> str:
    path, _, part = finding.path.partition("#")
    if path in damaged:
        return path
    tar = f"{path.removesuffix('.idx').removesuffix('.meta.jsonl').removesuffix('.tar')}.tar"
    if tar in tars:
        return tar
    if part in keys:
        return keys[part]
    for tar in tars if part else ():
        name = "/".join(tar.split("/")[-2:])
        is_expected = finding.expected.endswith(f" of {name}")
        if tar.endswith(f"/{part}") or is_expected or finding.found == f"shard {name!r}":
            return tar
    if finding.code in _OF_TABLES and finding.expected.startswith(ROW_OF):
        return finding.expected.removeprefix(ROW_OF)
    return path
