"""What a container asks of the file beneath it."""

import errno
import io

import pytest

from curator.media.container import _Seeking


class Refusing(io.BytesIO):
    """Seeks fail as those of a file do, or as those of a disk that is gone."""

    def __init__(self, number: int) -> None:
        super().__init__(b"abc")
        self._number = number

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > 100:
            raise OSError(self._number, "refused")
        return super().seek(offset, whence)


def test_a_seek_to_where_no_file_reaches_is_answered_and_not_raised() -> None:
    """Pins what FFmpeg takes for an error: damaged sizes of boxes lead there."""
    reader = _Seeking(Refusing(errno.EINVAL))
    assert reader.seek(1 << 62) == -errno.EINVAL
    assert reader.seek(-5) == -errno.EINVAL
    assert reader.seek(1) == 1
    assert reader.read() == b"bc"


def test_a_disk_that_fails_is_raised() -> None:
    with pytest.raises(OSError, match="refused"):
        _Seeking(Refusing(errno.EIO)).seek(1 << 62)
