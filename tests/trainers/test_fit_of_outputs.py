"""`curate fit`, and what runs say about the trainers of a recipe."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import small_output
from small_output import CLIPS, SmallOutput, clip_id

from curator.cli import main
from curator.recipe import Recipe, load_recipe
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.trainers.clip_fit import added, fit_windows
from curator.trainers.fit_words import fit_lines
from curator.trainers.trainer_files import load_trainer, trainer_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    output = SmallOutput(tmp_path_factory.mktemp("fit") / "out", {1, 2})
    output.run({1, 2})
    return str(output.out)


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = EXIT_OK) -> Any:  # noqa: ANN401
    capsys.readouterr()
    assert main(["fit", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_table_has_a_column_per_trainer(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [out, "--for", "ltx2", "--for", "wan-diffsynth", "--for", "musubi", "--set", "frames=5"]
    first, second, third = document(capsys, *words)
    assert (first["trainer"], second["trainer"], third["trainer"]) == (
        "ltx2", "wan-diffsynth", "musubi",
    )  # fmt: skip
    # Clips of a small output have 4 to 6 frames or so: both rules decide by the number alone.
    rows = document(capsys, out, "--for", "clip-dataset", "--explain", clip_id(1, 0))
    n_frames = rows["clip"]["n_frames"]
    assert first["clips"] == second["clips"] == 2 * CLIPS
    assert second["read"] == second["clips"]
    assert first["read"] == (first["clips"] if n_frames >= 5 else 0)
    assert first["read"] + first["dropped"].get("too_short", 0) == first["clips"]
    assert main(["fit", *words]) == EXIT_OK
    printed = capsys.readouterr().out
    assert "ltx2 frames=5" in printed
    assert "footage seen" in printed


def test_explain_says_all_about_one_clip(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [out, "--for", "wan-diffsynth", "--for", "cosmos-predict2", "--explain"]
    facts = document(capsys, *words, clip_id(2, 1))
    diffsynth, predict = facts["fits"]
    n_frames = facts["clip"]["n_frames"]
    read = (n_frames - 1) // 4 * 4 + 1
    assert diffsynth["frames"] == [list(range(read))]
    assert predict["reason"] == "too_short"
    assert main(["fit", *words, facts["clip"]["key"][:20]]) == EXIT_OK
    printed = capsys.readouterr().out
    assert f"dropped: {n_frames} frames as the trainer counts them; it needs 93" in printed
    assert "in the trainer: lower num_frames; try it with --set frames=..." in printed
    assert "in the recipe: propose.windows with {frames: 94, fps: 16}" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "curate fit needs OUT"),
        (["--for", "ltx2"], "curate fit needs OUT"),
        (["{out}"], "has no recipe that names trainers in train_for; give --for TRAINER"),
        (["{out}", "--for", "ltx"], "unknown trainer 'ltx'; did you mean 'ltx2'?"),
        (["{out}", "--for", "ltx2", "--set", "fps=3"], "unknown parameter 'fps'"),
        (["{out}", "--for", "ltx2", "--set", "frames"], "expected PARAMETER=VALUE"),
        (["{out}", "--for", "ltx2", "--split", "val"], "no kept clip meets --where and --split"),
        (["{out}", "--for", "ltx2", "--explain", "zz"], "no kept clip has this id or key"),
        (["{out}", "--for", "./mine.yaml"], "trainer file './mine.yaml' does not exist"),
    ],
)
def test_wrong_usage_is_refused(
    words: list[str], message: str, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = document(capsys, *(word.format(out=out) for word in words), code=EXIT_USAGE)
    assert message in error["error"]


def test_list_has_every_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    assert [entry["name"] for entry in document(capsys, "--list")] == trainer_names()


def test_a_summary_has_what_trainers_see_also_after_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe.model_validate(
        {"train_for": ["wan-diffsynth", {"trainer": "ltx2", "frames": 9}]}
    )
    monkeypatch.setattr(small_output, "_RECIPE", recipe)
    output = SmallOutput(tmp_path / "out", {1, 2})
    output.run({1, 2})

    def stored() -> Any:  # noqa: ANN401
        return json.loads((output.out / "summary.json").read_text())["fit"]

    both = stored()
    words = [str(output.out), "--for", "wan-diffsynth", "--for", "ltx2", "--set", "frames=9"]
    _, ltx2 = document(capsys, *words)
    assert both[1] == ltx2
    # Without --for, the trainers of the recipe with its parameters; --set goes before these.
    assert document(capsys, str(output.out)) == both
    assert document(capsys, str(output.out), "--for", "ltx2") == [both[1]]
    own = ("--set", "ltx2.frames=17", "--set", "wan-diffsynth.frames=33")
    named = [facts["parameters"]["frames"] for facts in document(capsys, str(output.out), *own)]
    assert named == [33, 17]
    assert document(capsys, str(output.out), "--set", "frames=5")[1]["parameters"]["frames"] == 5
    assert [facts["clips"] for facts in both] == [2 * CLIPS, 2 * CLIPS]
    assert "wan-diffsynth sees" in (output.out / "report/index.html").read_text()
    output.remove(1)
    assert [facts["clips"] for facts in stored()] == [CLIPS, CLIPS]


def test_a_recipe_without_trainers_has_no_such_facts(out: str) -> None:
    assert "fit" not in json.loads(Path(out, "summary.json").read_text())
    assert fit_lines({}, "out") == []


def facts_of(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    names = (
        "clips", "read", "drawn", "cut_at_tail", "retimed", "enlarged", "captions_cut",
        "captions_likely_cut", "without_caption", "without_sound", "other_windows", "footage_s",
        "read_s", "seen_s", "readable_s", "tail_s", "cropped_s",
    )  # fmt: skip
    own = {"trainer": name, "label": name, "settings": [], "parameters": {}, "dropped": {}}
    return {**dict.fromkeys(names, 0), **own, **more}


def test_a_run_warns_where_training_would_go_wrong() -> None:
    ltx2 = facts_of(
        "ltx2", clips=4, read=4, footage_s=10.0, seen_s=4.9, readable_s=4.9, without_sound=4,
        enlarged=1, retimed=2,
    )  # fmt: skip
    seen, *warnings = fit_lines({"fit": [ltx2]}, "out")
    assert seen == "ltx2 sees 49% of the footage and 100% of the clips"
    assert [warning.partition("; ")[0] for warning in warnings] == [
        "warning: ltx2 never sees more than half of the footage",
        "warning: ltx2 trains on sound, and no clip has sound",
        "warning: ltx2 shows 2 clips at another speed",
        "warning: ltx2 enlarges 1 clip",
    ]
    drawn = facts_of("x", clips=1, read=1, footage_s=9.0, seen_s=3.0, readable_s=9.0, drawn=1)
    assert fit_lines({"fit": [drawn]}, "out") == [
        "x sees 33% of the footage per epoch (100% can be drawn) and 100% of the clips"
    ]


def test_a_trainer_has_windows_of_its_own_sizes() -> None:
    """Pins that windows of another size, which show the same footage, do not count as lost."""

    def clips(*sizes: tuple[int, int]) -> pa.Table:
        frames, rates = zip(*sizes, strict=True)
        n = len(sizes)
        seconds = [own / rate for own, rate in sizes]
        return pa.table(
            {
                "n_frames": frames, "fps_fraction": [str(rate) for rate in rates],
                "width": [832] * n, "height": [480] * n, "audio": ["aac"] * n,
                "start_s": [0.0] * n, "end_s": seconds, "caption": ["words"] * n,
                "window_frames": frames, "window_fps": rates,
            }
        )  # fmt: skip

    wan, ltx2 = load_trainer("wan-diffsynth"), load_trainer("ltx2", {"frames": 121})
    tables = [clips((81, 16), (121, 24), (81, 16)), clips((121, 24))]
    for trainer, seconds in ((wan, 2 * 81 / 16), (ltx2, 2 * 121 / 24)):
        facts = fit_windows(trainer, tables)
        assert (facts["clips"], facts["read"], facts["other_windows"]) == (2, 2, 2)
        assert facts["seen_s"] == facts["footage_s"] == pytest.approx(seconds, abs=0.001)
        assert facts["retimed"] == 0
        line, *_ = fit_lines({"fit": [facts]}, "out")
        assert line.endswith("of the clips, without 2 windows of other sizes")
    # A trainer without windows of its own sees all sizes, as badly as it does.
    facts = fit_windows(load_trainer("ltx2", {"frames": 257}), tables)
    assert (facts["clips"], facts["read"], facts["other_windows"]) == (4, 0, 0)
    assert fit_windows(wan, [])["clips"] == 0


def test_facts_of_generations_add_up() -> None:
    old = facts_of("a", clips=2, seen_s=1.5, dropped={"too_short": 1})
    new = facts_of("a", clips=3, seen_s=2.0, dropped={"too_short": 2, "too_long": 1})
    (total,) = added([old], [new], is_first=False)
    assert (total["clips"], total["seen_s"]) == (5, 3.5)
    assert total["dropped"] == {"too_short": 3, "too_long": 1}
    # Of a trainer that is new in the recipe, earlier clips are unknown.
    other = facts_of("b", clips=3)
    assert added([old], [other], is_first=False) == []
    assert added([], [other], is_first=True) == [other]


def test_the_recipe_of_an_output_stays_readable_without_a_trainers_file() -> None:
    recipe = load_recipe({"train_for": [{"trainer": "./gone.yaml", "frames": 9}]})
    assert recipe.model_dump(mode="json")["train_for"] == [{"trainer": "./gone.yaml", "frames": 9}]


def test_the_page_lists_all_trainers() -> None:
    """Pins the table of docs/fit.md, which `table_of_page` writes."""
    assert table_of_page() in (ROOT / "docs/fit.md").read_text()


def table_of_page() -> str:
    lines = ["| trainer | trains | version read | parameters |", "|---|---|---|---|"]
    for name in trainer_names():
        trainer = load_trainer(name)
        rules = trainer.rules
        values = ", ".join(f"`{setting}`" for setting in trainer.defaults)
        version = f"{rules.project} {rules.version}"
        lines.append(f"| `{name}` | {rules.about} | {version} | {values or '-'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table_of_page())


def test_train_for_has_each_trainer_once() -> None:
    other = {"trainer": "ltx2", "frames": 97}
    recipe = load_recipe({"train_for": ["ltx2", other, {"trainer": "ltx2"}, other]})
    assert recipe.model_dump(mode="json")["train_for"] == [{"trainer": "ltx2"}, other]
