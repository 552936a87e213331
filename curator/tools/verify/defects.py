"""Groups findings by the object that is at fault."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curator.dataset.tar_reader import tar_of
from curator.tools.verify.findings import MAX_STORED, Finding, FindingCode

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """An object at fault, and its findings, the cause first."""

    path: str
    findings: Sequence[Finding]
    samples: frozenset[str]
    """Keys of affected samples that findings name."""

    @property
    def is_warning(self) -> bool:
        """Whether all findings are warnings."""
        return all(finding.is_warning for finding in self.findings)

    def is_truncated(self, counts: Mapping[str, int]) -> bool:
        """Returns whether findings of the defect's codes were counted but not stored."""
        return any(counts.get(str(finding.code), 0) > MAX_STORED for finding in self.findings)


def defects(findings: Sequence[Finding]) -> list[Defect]:
    """Groups findings by object, in the order of the first finding of each object.

    The indexes of a tar with findings belong to the tar.
    """
    tars = {path for f in findings if (path := f.path.partition("#")[0]).endswith(".tar")}
    by_object: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        path = finding.path.partition("#")[0]
        tar = tar_of(path)
        by_object[tar if tar in tars else path].append(finding)
    return [
        Defect(
            path=path,
            # The sort keeps the order of codes, which begins with causes.
            findings=sorted(group, key=lambda finding: finding.path != path),
            samples=frozenset(
                part.partition(".")[0]
                for finding in group
                if finding.code in _OF_SAMPLES and (part := finding.path.partition("#")[2])
            ),
        )
        for path, group in by_object.items()
    ]
