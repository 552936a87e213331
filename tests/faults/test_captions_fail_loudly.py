"""Windows without an answer show in the exit code, and a run without any answer commits nothing.

Fails where a recaption with no answer at all ends with 0 and writes new tars.
"""

import re

import pytest
from captioned import FILMS, Captioned, film_of

from curator.cli import main
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_OK

DOWN = {"status": 500}
ALL_DOWN = {name[0]: DOWN for name in FILMS}
ONCE = "caption.tries=1"
OTHER = "caption.temperature=0.5"


@pytest.mark.long
def test_a_recaption_without_an_answer_commits_nothing_and_keeps_replies(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    before, summary = place.files(), place.summary()
    place.server.set(by_source=ALL_DOWN | {"1": {"text": "A {broken object"}})
    assert place.recaption_code(ONCE, OTHER) == EXIT_BROKEN_OFF
    error = capsys.readouterr().err.splitlines()[-1]
    n_windows = summary["work"]["caption_windows"]
    assert f"none of {n_windows} windows got an annotation" in error
    assert "server_error" in error
    assert re.search(r"such as [0-9a-f]{24}: (server_error|bad_answer)", error)
    assert "nothing was committed, and replies that were given are kept" in error
    assert (place.files(), place.summary()) == (before, summary)
    place.server.start(captions=True)
    of_film = sum(
        len(rows)
        for name, rows in place.annotations().items()
        if film_of(next(clip for clip in place.clips() if clip["clip_id"] == name)) == 1
    )
    now = place.recaption(ONCE, OTHER)
    assert place.n_asked() == n_windows - of_film
    assert now["work"]["caption_failed_bad_answer"] == of_film


@pytest.mark.parametrize("failed", ["keep", "reject"])
def test_a_run_without_an_answer_commits_nothing(
    place: Captioned, capsys: pytest.CaptureFixture[str], failed: str
) -> None:
    before, summary = place.files(), place.summary()
    place.server.set(by_source=ALL_DOWN)
    assert main(place.arguments(ONCE, OTHER, f"caption.failed={failed}")) == EXIT_BROKEN_OFF
    assert "windows got an annotation" in capsys.readouterr().err.splitlines()[-1]
    assert (place.files(), place.summary()) == (before, summary)


@pytest.mark.long
def test_max_failed_counts_windows(place: Captioned, capsys: pytest.CaptureFixture[str]) -> None:
    place.server.set(by_source={"1": DOWN})
    recaption = ["recaption", str(place.out), "--set", ONCE, "--set", OTHER]
    assert main([*recaption, "--max-failed", "0.9"]) == EXIT_OK
    assert main(recaption) == EXIT_FAILED
    assert main([*recaption, "--max-failed", "0.01"]) == EXIT_FAILED
    work = place.summary()["work"]
    error = capsys.readouterr().err.splitlines()[-1]
    n_failed, n_windows = work["caption_failed_server_error"], work["caption_windows"]
    assert f"{n_failed} of {n_windows} windows without an annotation" in error
    assert main([*place.arguments(ONCE, OTHER), "--max-failed", "0.01"]) == EXIT_FAILED
    assert main(place.arguments(ONCE, OTHER)) == EXIT_OK
