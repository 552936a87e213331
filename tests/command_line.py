"""The command line in the process of a test."""

from typing import Protocol

import pytest

from curator.cli import main


class Curate(Protocol):
    """Runs a command, and returns what it prints, or its errors if it ends with a code."""

    def __call__(self, *arguments: object, code: int = 0) -> str: ...


@pytest.fixture
def curate(capsys: pytest.CaptureFixture[str]) -> Curate:
    """Runs commands; they must end with the code that is expected."""

    def run(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        captured = capsys.readouterr()
        return (code and captured.err) or captured.out

    return run
