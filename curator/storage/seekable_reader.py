"""The part that raw streams of known size have in common: a position that moves without reading."""

import io


class SeekableReader(io.RawIOBase):
    """A raw stream of `size` bytes that is read from any position by `readinto` of a subclass."""

    def __init__(self, name: str, size: int = 0) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Returns the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves; nothing is read.

        Raises:
            ValueError: The position would be before the start.
        """
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}: before the start of {self.name!r}")
        self._position = base + offset
        return self._position
