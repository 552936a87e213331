"""README and docs: commands parse, recipes validate, links and names exist.

A Python block of docs/train.md runs if a comment `<!-- runnable: ... -->` precedes it; its folder
has a finished run in `out`. `tests/runs/test_whole_run.py` runs what README.md has.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from curator.cli import make_parser
from curator.errors import ErrorCode
from curator.models.catalogue import CATALOGUE, load_catalogue
from curator.recipe import Recipe, load_recipe, recipe_names
from curator.records.cuts import NotCopied
from curator.records.sources import Note
from curator.strict_yaml import load_yaml
from curator.tools.verify.findings import FindingCode
from tests.made_shards import made_clips, write_shards

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "infra").rglob("*.md")),
]
FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
OWN_FOLDERS = ("curator", "docs", "benchmarks", "pipelines", "infra", "tests", "examples")
README_LINES = 150


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages name the classes of `examples/`, whose measures must not outlast a test."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield
    Recipe()


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str
    mark: str


def blocks() -> Iterator[Block]:
    for page in PAGES:
        for found in FENCE.finditer(page.read_text()):
            yield Block(
                str(page.relative_to(ROOT)), found["language"], found["text"], found["mark"] or ""
            )


def command_lines() -> Iterator[tuple[str, str]]:
    """Page and line of each `curate` command; a line goes on after a backslash."""
    for block in blocks():
        if block.language in ("", "bash"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.strip().startswith("curate "):
                    yield block.page, line.strip()


def python_blocks() -> list[Block]:
    return [block for block in blocks() if block.language == "python"]


def run(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs a Python block in a folder with a finished run; returns its names."""
    write_shards(folder / "out", [("48p_3-2_17f", "train", made_clips(folder, 1))])
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(block.text, block.page, "exec"), names)
    return names


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_commands_parse(
    page: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that each command is one that the parser takes, with keys that recipes have."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    try:
        options = make_parser().parse_args(shlex.split(line, comments=True)[1:])
    except SystemExit:
        pytest.fail(f"{page}: {line}\n{capsys.readouterr().err}")
    recipe = getattr(options, "recipe", None) or "quickstart"
    if recipe in recipe_names():
        load_recipe(recipe, getattr(options, "overrides", []))


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "yaml"])
def test_recipe_fragments_validate(block: Block) -> None:
    if block.mark == CATALOGUE:
        load_catalogue(block.text)
    else:
        load_recipe(load_yaml(block.text))


@pytest.mark.parametrize("block", python_blocks())
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, block.page, "exec")


def test_the_training_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the loop of docs/train.md with one clip: shapes, ranges, and the saved state."""
    loop = next(b for b in python_blocks() if b.page == "docs/train.md" and b.mark)
    names = run(loop, tmp_path, monkeypatch)
    assert names["video"].shape == (1, 3, 17, 256, 256)
    assert -1 <= names["video"].min() < 0 < names["video"].max() <= 1
    caption = names["caption"]
    assert caption.unique[caption.inverse[0]].startswith("Caption ")
    assert names["loader"].state_dict()["epoch"] == 2
    assert len(names["loader"]) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if not link.startswith(("http://", "https://")):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            assert target.exists(), f"{link} leads nowhere"
            assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],  # which names files of older versions
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_files_and_make_targets_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(rf"`((?:{'|'.join(OWN_FOLDERS)})/[\w./*-]*)`", text):
        assert any(ROOT.glob(name.rstrip("/"))), f"{name} does not exist"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^)make ([a-z-]+)\b", text, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile, f"make {target} is no target"


def test_the_readme_is_short() -> None:
    n_lines = len((ROOT / "README.md").read_text().splitlines())
    assert n_lines <= README_LINES, f"{n_lines} lines; move the rest to a page of docs/"


def test_the_index_names_every_page() -> None:
    """Pins that each page is reached from docs/README.md, those on design from their own index."""
    for folder in (ROOT / "docs", ROOT / "docs" / "design"):
        index = (folder / "README.md").read_text()
        missing = [p.name for p in folder.glob("*.md") if f"({p.name})" not in index]
        assert missing in ([], ["README.md"])


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("reasons.md", ErrorCode),
        ("reasons.md", Note),
        ("cut.md", NotCopied),
        ("verify.md", FindingCode),
    ],
)
def test_pages_explain_every_public_word(page: str, words: Iterable[str]) -> None:
    """Pins that no error code, note, reason for encoding or finding is left out of its page."""
    text = (ROOT / "docs" / page).read_text()
    for word in words:
        short = word.removeprefix("not_on_gpu_")
        assert f"`{word}`" in text or (short != word and f"`{short}`" in text), word


def test_the_log_of_gpus_names_modules_that_exist() -> None:
    """Pins paths of `curator/`, without that folder, and of others, whole."""
    text = (ROOT / "benchmarks" / "results" / "gpu-log.md").read_text()
    named = {found[1] for found in re.finditer(r"`([\w/]+/\w+(?:\.py)?)[ `]", text)}
    paths = {name for name in named if name.endswith(".py") or name.startswith("tests/")}
    assert len(paths) > 10
    gone = [
        name for name in paths if not any((at / name).exists() for at in (ROOT / "curator", ROOT))
    ]
    assert gone == []
