"""What a search shows: pages that play clips, hostile names and captions, and search by a text."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searchable import searchable_out, unit_vectors

import curator
from curator.cli import main
from curator.models.catalogue import ModelEntry
from curator.runs import query_media
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.retrieval import search_results
from curator.tools.retrieval.clip_search import ClipSearch, SharedFootage
from curator.tools.retrieval.search_results import as_table, render_search, shared_words
from tests.tiny_clip import TINY
from tests.tools.report.test_report import EVIL, Page

N = 6
MP4 = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run whose names and captions are to be run as HTML, or to change a terminal."""
    out = tmp_path_factory.mktemp("hostile") / "out"
    uris = [f"/films/{EVIL}\x1b[31m\u202e.mp4"] * N
    ids = searchable_out(
        out, N, captions=dict.fromkeys(range(N), f"\x1b]0;{EVIL}"), mp4=MP4, source_uri=uris
    )
    return out, ids


def test_a_page_plays_the_clips_and_runs_nothing(hostile: tuple[Path, list[str]]) -> None:
    """Pins the bytes of clips in the page, its policy, and that no text becomes HTML."""
    out, ids = hostile
    assert main(["search", str(out), "--clip", ids[0], "--html", str(out / "page.html")]) == EXIT_OK
    html = (out / "page.html").read_text()
    page = Page(html)
    assert "<script" not in html
    assert "<img src=x" not in html
    assert not [name for _, given in page.tags for name in given if name.startswith("on")]
    videos = [given for tag, given in page.tags if tag == "video"]
    assert len(videos) == N - 1
    for given in videos:
        kind, _, data = (given["src"] or "").partition(",")
        assert kind == "data:video/mp4;base64"
        assert base64.b64decode(data.partition("#")[0]) == MP4
    addresses = [v for _, given in page.tags for n, v in given.items() if n in ("src", "href")]
    assert all(address is not None and address.startswith("data:") for address in addresses)
    (policy,) = (given["content"] or "" for tag, given in page.tags if "http-equiv" in given)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert policy.endswith("; media-src data:")
    assert "cannot be played here" not in html


def test_clips_beyond_the_size_of_a_page_are_pictures(
    hostile: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, ids = hostile
    monkeypatch.setattr(search_results, "PAGE_BYTES", 2 * len(MP4) + 1)
    clips = ClipSearch.open(str(out))
    page = Page(render_search(clips.finished, clips.by_clip(ids[0]), "clip", EVIL))
    assert len([tag for tag, _ in page.tags if tag == "video"]) == 2
    assert len([tag for tag, _ in page.tags if tag == "img"]) == N - 3
    assert any("3 clips cannot be played here" in text for text in page.texts)


def test_a_terminal_gets_no_control_characters_and_words_of_what_is_shared(
    hostile: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, ids = hostile
    text = as_table(curator.search(out, clip=ids[0]), "clip")
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == N
    page = out / "none.html"
    none = ["search", str(out), "--clip", ids[0], "--where", "motion > 9", "--html", str(page)]
    assert main(none) == EXIT_OK
    assert capsys.readouterr().out.startswith("no clip was found\n")
    assert "0 clips found" in page.read_text()
    shared = SharedFootage(
        query_s=75.0, at_s=1.0, overlap_s=4.0, offset_s=-59.0, speed=0.8, mirrored=True
    )
    assert shared_words(shared) == (
        "4.0 s from 0:01:15 of the video on, mirrored, 1.25 times as fast as in the video"
    )


def test_a_text_is_compared_with_embeddings_of_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins which clip a text finds, and that missing weights are refused with their remedy."""
    embeddings = unit_vectors(N, 32)
    recipe = {"analyze": {"clip": "test-tiny"}, "models": str(tmp_path / "models")}
    (tmp_path / "models").mkdir()
    entry: dict[str, Any] = {
        "kind": "clip", "about": "for tests", "config": TINY, "dim": 32,
        "file": "model.safetensors", "licence": "none",
    }  # fmt: skip
    catalogue = tmp_path / "models" / "catalogue.yaml"
    catalogue.write_text(f"test-tiny: {entry}")
    ids = searchable_out(tmp_path / "out", N, recipe=recipe, clip_vectors=embeddings)
    asked = ["search", str(tmp_path / "out"), "--text", "a dog"]
    assert main(asked) == EXIT_USAGE
    assert "curate models pull test-tiny" in capsys.readouterr().err

    def embedder(_: ModelEntry, weights: Path) -> Callable[[Sequence[str]], Any]:
        return lambda prompts: (embeddings[[len(prompts[0]) % N]], 100.0)

    (tmp_path / "models" / "test-tiny").mkdir()
    (tmp_path / "models" / "test-tiny" / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(query_media, "text_embedder", embedder)
    found = curator.search(tmp_path / "out", text="a cat", k=2)
    assert found[0].clip_id == ids[5]
    assert found[0].score == pytest.approx(1.0, abs=0.02)
    assert found[0].at_s is None
    assert main([*asked[:3], " "]) == EXIT_USAGE
    assert "--text is empty" in capsys.readouterr().err
    assert np.isfinite([clip.score for clip in found]).all()
