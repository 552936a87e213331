"""Reads C2PA manifests: whether hashes and signature hold, and what they say about the origin.

Only manifests inside the file are read. Nothing is fetched: neither manifests at an address that a
file names, nor lists of revoked certificates.
"""

import json
from typing import Any, BinaryIO

from curator.errors import CuratorError

_MIME_TYPES = {
    "mov,mp4,m4a,3gp,3g2,mj2": "video/mp4", "avi": "video/avi", "jpeg": "image/jpeg",
    "png": "image/png", "webp": "image/webp", "avif": "image/avif",
}  # fmt: skip
"""Types of containers that may hold a manifest, by the name in `sources.container`."""
_SETTINGS = {"verify": {"verify_trust": False, "remote_manifest_fetch": False, "ocsp_fetch": False}}
_GENERATED = ("trainedAlgorithmicMedia", "compositeWithTrainedAlgorithmicMedia")
"""Digital source types of IPTC, as the end of an address."""
_JUMBF = b"jumb"
"""Type of the boxes that hold a manifest, in all containers."""
_ENDS_BYTES = 1 << 20
_MAX_CHARACTERS = 200
"""Length at which names out of a manifest are truncated."""

Credentials = dict[str, str | bool]


class CredentialReader:
    """Reads the manifests of sources; needs the package c2pa-python, of the extra `rights`."""

    def __init__(self) -> None:
        import c2pa

        self._c2pa = c2pa
        self._context = c2pa.Context(settings=c2pa.Settings.from_dict(_SETTINGS))

    def read(self, reader: BinaryIO, container: str) -> Credentials:
        """Returns the columns `c2pa…` of a source; empty if it was not checked.

        Reads a file with a manifest whole.

        Args:
            reader: The source, at any position.
            container: Its container, as in `sources.container`.

        Raises:
            SourceError: The source cannot be read.
        """
        mime_type = _MIME_TYPES.get(container)
        if mime_type is None:
            return {}
        stream = _KeptErrors(reader)
        stream.seek(0)
        try:
            found = self._c2pa.Reader.try_create(mime_type, stream, context=self._context)
            if found is None:
                credentials: Credentials = {"c2pa": "none"}
            else:
                with found:
                    credentials = _credentials(found)
        except self._c2pa.C2paError as error:
            # A file that FFmpeg reads may be too damaged for this parser, with and without
            # manifest.
            credentials = {}
            if not isinstance(error, self._c2pa.C2paError.RemoteManifest) and _has_jumbf(stream):
                credentials = {"c2pa": "invalid"}
        if stream.error is not None:
            raise stream.error
        return credentials


class _KeptErrors:
    """A stream for the library, whose callbacks turn errors into ends of the file."""

    def __init__(self, reader: BinaryIO) -> None:
        self._reader = reader
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Reads bytes; keeps the first error."""
        try:
            return self._reader.read(size)
        except (CuratorError, OSError) as error:
            self.error = self.error or error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves within the source."""
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        """Returns the position."""
        return self._reader.tell()

    def write(self, data: bytes) -> int:
        """Refuses to write."""
        raise OSError("a source is not written")

    def flush(self) -> None:
        """Does nothing, because nothing is written."""


def _has_jumbf(stream: _KeptErrors) -> bool:
    """Returns whether the first or the last megabyte has a box of a manifest."""
    size = stream.seek(0, 2)
    for start in (0, max(0, size - _ENDS_BYTES)):
        stream.seek(start)
        if _JUMBF in stream.read(_ENDS_BYTES):
            return True
    return False


def _credentials(found: Any) -> Credentials:  # noqa: ANN401 - c2pa has no types
    store = json.loads(found.json())
    manifests = store.get("manifests") or {}
    state = found.get_validation_state()
    credentials: Credentials = {
        "c2pa": "valid" if state in ("Valid", "Trusted") else "invalid",
        "c2pa_generated": any(map(_is_generated, manifests.values())),
    }
    active = manifests.get(store.get("active_manifest")) or {}
    issuer = (active.get("signature_info") or {}).get("issuer")
    tools = active.get("claim_generator_info") or [{"name": active.get("claim_generator")}]
    for name, text in (("c2pa_issuer", issuer), ("c2pa_tool", tools[0].get("name"))):
        if isinstance(text, str) and text:
            credentials[name] = text[:_MAX_CHARACTERS]
    return credentials


def _is_generated(manifest: Any) -> bool:  # noqa: ANN401 - JSON
    """Returns whether an action or an assertion of a manifest names a generated source type."""
    if isinstance(manifest, dict):
        kind = manifest.get("digitalSourceType")
        named = isinstance(kind, str) and kind.rpartition("/")[2] in _GENERATED
        return named or any(map(_is_generated, manifest.values()))
    return isinstance(manifest, list) and any(map(_is_generated, manifest))
