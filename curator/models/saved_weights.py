"""Folders of models as `save_pretrained` of diffusers and transformers writes them.

Nothing is downloaded: a model is a folder, or a repository in the local cache of the hub.
"""

import hashlib
import importlib
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from curator.errors import ModelError, one_line

AS_SAVED = "copy or download the folder of the model again, as `save_pretrained` writes it"
"""Remedy for a folder with files that are damaged or of something else."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_MAX_HEADER_BYTES = 100_000_000
"""Longest header that the package safetensors reads."""


def model_folder(place: str, what: str) -> Path:
    """Returns the folder of a path, or of a repository `owner/name` that the cache has.

    Args:
        place: What the user named.
        what: Name of the setting, for messages.

    Raises:
        ModelError: There is no such folder.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        return path
    why = "no such folder"
    if _HUB_ID.fullmatch(place) and importlib.util.find_spec("huggingface_hub") is not None:
        hub = importlib.import_module("huggingface_hub")
        try:
            return Path(hub.snapshot_download(place, local_files_only=True))
        except Exception as error:  # noqa: BLE001 - of many types, by version
            why = f"no such folder, and not in the local cache of the hub: {one_line(error)}"
    raise ModelError(
        f"{what} {place!r}: {why}; expected the folder of a model, or owner/name of a repository "
        "that `hf download owner/name` has put into the local cache"
    )


def read_settings(path: Path, of: str) -> dict[str, Any]:
    """Returns the JSON object in a file of a model's folder.

    Args:
        path: The file.
        of: Setting and value that the user named, for messages.

    Raises:
        ModelError: The file cannot be read, or holds something else.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{of}: {path} cannot be read as JSON ({one_line(error)}); {AS_SAVED}"
        ) from error
    if not isinstance(value, dict):
        raise ModelError(f"{of}: {path} holds {type(value).__name__}, no JSON object; {AS_SAVED}")
    return value


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """The files of a model's weights, in order."""

    files: tuple[Path, ...]

    @classmethod
    def find(cls, folder: Path, stem: str) -> "SavedWeights":
        """Returns the weights of a folder.

        Args:
            folder: The folder.
            stem: Name of the file without `.safetensors`, or of the index of several files.

        Raises:
            ModelError: There are none in safetensors, they are incomplete, or the index cannot be
                read.
        """
        index = folder / f"{stem}.safetensors.index.json"
        names = [f"{stem}.safetensors"]
        if index.is_file():
            files = read_settings(index, str(folder)).get("weight_map")
            of_tensors = files.values() if isinstance(files, dict) else ()
            names = sorted({name for name in of_tensors if isinstance(name, str)})
            if not names or len(names) < len({str(name) for name in of_tensors}):
                raise ModelError(
                    f"{index} has no weight_map from tensors to names of files; {AS_SAVED}"
                )
        for path in (folder / name for name in names):
            if not path.is_file():
                raise ModelError(
                    f"{path} does not exist; expected weights in safetensors, as "
                    "`save_pretrained` writes them"
                )
            stat = path.stat()
            if (fault := _fault(path, stat.st_size, stat.st_mtime_ns)) is not None:
                raise ModelError(f"{path} is no whole file in safetensors: {fault}; {AS_SAVED}")
        return cls(tuple(folder / name for name in names))

    @property
    def n_bytes(self) -> int:
        """Size of all files together."""
        return sum(path.stat().st_size for path in self.files)

    def sha256(self) -> str:
        """Returns the SHA-256 of the file, or of the hashes of several files."""
        stats = [(path, path.stat()) for path in self.files]
        digests = [_file_sha256(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(digests).encode()).hexdigest()


def settings_sha256(config: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a model's configuration, without keys that depend on the writer."""
    ignored = ("_", "transformers_version")
    return json_sha256({k: value for k, value in config.items() if not k.startswith(ignored)})


def json_sha256(value: object) -> str:
    """Returns the SHA-256 of a JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=64)
def _fault(path: Path, n_bytes: int, changed_ns: int) -> str | None:
    """Returns why a file is not in safetensors, or not whole; the time is only the cache's key.

    A pointer of Git LFS in place of the weights is such a file, and so is a download that broke
    off.
    """
    del changed_ns
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(n_bytes - 8, _MAX_HEADER_BYTES):
                return f"its {n_bytes} bytes have no header"
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        return f"its header cannot be read ({one_line(error)})"
    return None if end == n_bytes else f"it has {n_bytes} bytes, and its header names {end}"


@lru_cache(maxsize=64)
def _file_sha256(path: Path, n_bytes: int, changed_ns: int) -> str:
    """Returns the SHA-256 of a file; size and time of change are only the cache's key."""
    del n_bytes, changed_ns
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
