"""Conversations and preference pairs: what trainers read, and where each record is from."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Curate
from made_samples import FPS, MadeClip, made_clips, make_shards
from PIL import Image
from test_export import exported, files
from tiny_vlm import tiny_folder

from curator.export.post_training import pairs_of
from curator.recipe import load_recipe
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.dialogs.window_dialog import Asker
from curator.storage import open_store
from curator.tables.parts import rows_to_table, write_tables
from curator.tables.schemas import ANNOTATIONS_SCHEMA
from curator.tools.commands.arguments import EXIT_USAGE

SETTINGS = (
    "caption.captioner=openai",
    "caption.url=http://127.0.0.1:1/v1",
    "caption.model=tiny",
    "caption.candidates=3",
    "caption.judge.model=strict",
    "caption.judge.url=http://127.0.0.1:1/v1",
    "caption.lengths=[short]",
    "caption.text=short",
)
QUESTIONS = [
    {
        "name": "short", "kind": "caption", "question": "What happens?",
        "answer": "A square moves.", "origin": "tiny", "reasoning": "", "reasoning_origin": None,
    },
    {
        "name": "reasoning", "kind": "reasoning", "question": "Which of these?",
        "answer": "A. calm", "origin": "metadata", "reasoning": "Nothing is near.",
        "reasoning_origin": "tiny",
    },
]  # fmt: skip


@pytest.fixture
def config() -> CaptionConfig:
    return load_recipe("quickstart", SETTINGS).caption


@pytest.fixture
def clips() -> list[MadeClip]:
    """As samples tell them: of frames 40 and more of their source, at 2 s."""
    own = {"source_start_frame": 40, "source_start_s": 2.0}
    return [replace(clip, changes=own) for clip in made_clips()]


def candidate(text: str, *scores: int | None) -> dict[str, Any]:
    names = ("faithfulness", "completeness", "correctness")
    answer: dict[str, Any] = dict.fromkeys(
        ("medium", "long", "structured", "content_type", "safety")
    )
    known = [score for score in scores if score is not None]
    return {
        **answer,
        "short": text,
        "answers": {},
        "extra": {},
        **dict(zip(names, scores, strict=True)),
        "score": min(known) if len(known) == 3 else None,
        "reply": f"reply of {text}",
        "text": json.dumps({"short": text}),
    }


CANDIDATES = [
    candidate("Good.", 5, 4, 5),
    candidate("Worse.", 3, 5, 5),
    candidate("Wrong.", 1, 5, 1),
]


def asked(clip: MadeClip) -> dict[str, str]:
    return {"system": "Be brief.", "user": f"Describe clip {clip.key}."}


def annotated(
    out: Path, clips: Sequence[MadeClip], config: CaptionConfig, **changes: object
) -> Path:
    """An output root whose tables tell one window of each clip, all but the last one."""
    make_shards(str(out), clips)
    asker = Asker(config)
    rows = [
        {
            "clip_id": clip.key, "source_id": clip.source, "window": 0, "start_frame": 0,
            "end_frame": clip.n_frames, "shown": [1, 3], "model": "tiny", "prompt": config.prompt,
            "asked": json.dumps(asked(clip)), "judge": "strict", "label": "calm",
            "candidates": json.dumps(CANDIDATES), "questions": json.dumps(QUESTIONS),
            "request_keys": ["first", "second"],
            "prompt_fingerprint": asker.prompt.fingerprint,
            "judge_prompt_fingerprint": load_prompt("judge").fingerprint,
        }
        | changes
        for clip in clips[:-1]
    ]  # fmt: skip
    store = open_store(str(out))
    summary = json.loads(store.read("summary.json"))
    recipe = load_recipe("quickstart", SETTINGS).model_dump(mode="json")
    summary["recipe"] = recipe
    parts = write_tables(
        store, "annotations", [rows_to_table(rows, ANNOTATIONS_SCHEMA)], ANNOTATIONS_SCHEMA
    )
    summary["tables"]["annotations"] = parts
    store.write("summary.json", json.dumps(summary).encode())
    return out


def records(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


@pytest.fixture
def out(tmp_path: Path, clips: list[MadeClip], config: CaptionConfig) -> Path:
    return annotated(tmp_path / "out", clips, config)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "to"


def test_conversations_have_the_form_of_llava(out: Path, to: Path, clips: list[MadeClip]) -> None:
    """Pins keys, turns, the one place of the frames, that the videos are the clips, and reuse."""
    exported(out, to, "conversations")
    by_key = {clip.key: clip for clip in clips}
    seen = []
    for split in ("train", "val"):
        for record in records(to, split):
            clip = by_key[Path(record["video"]).stem]
            assert clip.split == split
            assert Path(record["video"]).read_bytes() == clip.mp4
            assert record["videos"] == [record["video"]]
            human, gpt = record["conversations"]
            assert (human["from"], gpt["from"]) == ("human", "gpt")
            assert human["value"].startswith("<video>\n")
            assert (human["value"] + gpt["value"]).count("<video>") == 1
            seen.append(record["id"])
    assert len(set(seen)) == len(seen) == 2 * (len(clips) - 1)
    before = files(to)
    assert exported(out, to, "conversations").n_reused == len(clips)
    assert files(to) == before


def test_a_record_says_where_it_is_from(
    out: Path, to: Path, clips: list[MadeClip], config: CaptionConfig
) -> None:
    """Pins provenance word by word, and the tags around reasoning."""
    exported(out, to, "conversations", relative=True)
    caption, reasoned = [r for r in records(to, "train") if r["id"].startswith(clips[0].key)]
    asker = Asker(config)
    assert caption["video"] == f"videos/train/{clips[0].key}.mp4"
    assert caption["conversations"][1]["value"] == "A square moves."
    assert (caption["kind"], caption["origin"]) == ("caption", "tiny")
    assert caption["provenance"] == {
        "clip_id": clips[0].key,
        "source_id": clips[0].source,
        "source_uri": f"/films/{clips[0].source[:4]}.mp4",
        "source_start_s": 2.0,
        "source_end_s": round(2.0 + float(clips[0].n_frames / FPS), 6),
        "window": 0,
        "start_frame": 0,
        "end_frame": clips[0].n_frames,
        "shown": [1, 3],
        "fps": float(FPS),
        "model": "tiny",
        "prompt": "describe",
        "prompt_fingerprint": asker.prompt.fingerprint,
        "judge": "strict",
        "judge_prompt_fingerprint": load_prompt("judge").fingerprint,
        "label": "calm",
        "reply_keys": ["first", "second"],
    }
    assert reasoned["conversations"][1]["value"] == (
        "<think>\nNothing is near.\n</think>\n\n<answer>\nA. calm\n</answer>"
    )
    assert "<think></think>" in reasoned["conversations"][0]["value"]
    assert (reasoned["origin"], reasoned["reasoning_origin"]) == ("metadata", "tiny")


def test_llama_factory_finds_the_columns_that_its_file_names(out: Path, to: Path) -> None:
    """Pins `dataset_info.json` against the records."""
    for split in ("val", "train"):
        exported(out, to, "conversations", splits=(split,))
    info = json.loads((to / "dataset_info.json").read_text())
    assert set(info) == {"curate_train", "curate_val"}
    for described in info.values():
        assert described["formatting"] == "sharegpt"
        lines = (to / described["file_name"]).read_text().splitlines()
        assert lines
        for line in lines:
            record = json.loads(line)
            assert isinstance(record[described["columns"]["messages"]], list)
            assert isinstance(record[described["columns"]["videos"]], list)


def test_preferences_have_the_form_of_trl(out: Path, to: Path, clips: list[MadeClip]) -> None:
    """Pins messages, to the letter as they are stored, images in order, scores and margins."""
    exported(out, to, "preferences")
    own = [r for r in records(to, "train") if r["provenance"]["clip_id"] == clips[0].key]
    assert [(r["margin"], r["provenance"]["rejected_key"]) for r in own] == [
        (1, "reply of Worse."),
        (3, "reply of Wrong."),
    ]
    record = own[1]
    system, user = record["prompt"]
    assert (system["role"], user["role"]) == ("system", "user")
    kinds = [part["type"] for part in user["content"]]
    assert kinds == ["image", "image", "text"]
    (chosen,), (rejected,) = record["chosen"], record["rejected"]
    assert chosen["role"] == rejected["role"] == "assistant"
    assert json.loads(chosen["content"][0]["text"]) == {"short": "Good."}
    assert json.loads(rejected["content"][0]["text"]) == {"short": "Wrong."}
    assert record["chosen_scores"] == {"faithfulness": 5, "completeness": 4, "correctness": 5}
    assert record["rejected_scores"] == {"faithfulness": 1, "completeness": 5, "correctness": 1}
    assert record["provenance"]["chosen_key"] == "reply of Good."
    assert [Path(path).stem for path in record["images"]] == ["000001", "000003"]
    brightest = [np.asarray(Image.open(path).convert("L")).argmax(1) for path in record["images"]]
    # The square of `made_mp4` moves 2 px a frame.
    assert brightest[0][16] < brightest[1][16]
    assert system["content"][0]["text"] == asked(clips[0])["system"]
    assert user["content"][-1]["text"] == asked(clips[0])["user"]


def test_margins_and_scores_decide_what_is_a_pair(
    out: Path, to: Path, tmp_path: Path, clips: list[MadeClip], config: CaptionConfig
) -> None:
    """Pins `--min-margin`, and that unscored and equal candidates are in no pair."""
    exported(out, to, "preferences", min_margin=2)
    assert {record["margin"] for record in records(to, "train")} == {3}
    alike = [candidate("Good.", 5, 5, 5), candidate("Good.", 4, 4, 4), candidate("?", 1, None, 1)]
    none = annotated(tmp_path / "none", clips, config, candidates=json.dumps(alike))
    done = exported(none, tmp_path / "empty", "preferences")
    assert done.n_clips == len(clips)
    assert records(tmp_path / "empty", "train") == []
    assert not (tmp_path / "empty" / "frames").exists()
    with pytest.raises(ValueError, match="min_margin is 0"):
        list(pairs_of(CANDIDATES, min_margin=0))


def test_what_is_missing_is_said_with_the_remedy(
    tmp_path: Path, clips: list[MadeClip], config: CaptionConfig, curate: Curate
) -> None:
    """Pins the refusals: no tables, no annotations, no judge."""

    def refused(out: Path, form: str) -> str:
        return curate("export", out, tmp_path / "to", "--format", form, code=EXIT_USAGE)

    bare = tmp_path / "bare"
    make_shards(str(bare), clips)
    assert "has no annotations; `curate recaption" in refused(bare, "conversations")
    assert "has no summary.json" in refused(bare / "shards", "conversations")
    single = annotated(tmp_path / "single", clips, config)
    summary = json.loads((single / "summary.json").read_text())
    summary["recipe"]["caption"] |= {"candidates": 1, "judge": None}
    (single / "summary.json").write_text(json.dumps(summary))
    assert "has one answer per window and no judge" in refused(single, "preferences")


def test_the_command_says_what_it_did(
    out: Path, to: Path, clips: list[MadeClip], curate: Curate
) -> None:
    """Pins the options of both formats on the command line."""
    options = ["--format", "preferences", "--min-margin", "2", "--split", "val", "--relative"]
    said = curate("export", out, to, *options)
    assert f"{to}: 2 clips as preferences" in said
    assert "\npairs of answers, a record each: 1\n" in said
    (record,) = records(to, "val")
    assert record["images"][0].startswith("frames/val/")
    assert not (to / "train.jsonl").exists()
    there = to / "there"
    printed = curate("export", out, there, "--format", "conversations")
    n_lines = len(records(there, "train")) + len(records(there, "val"))
    assert n_lines > len(clips)
    assert f"\nquestions with answers, a record each: {n_lines}\n" in printed


def test_dpo_takes_steps_on_what_is_exported(out: Path, to: Path, tmp_path: Path) -> None:
    """Pins messages and images against TRL's own reading, with a small Qwen2.5-VL."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from transformers import AutoModelForImageTextToText, AutoProcessor

    exported(out, to, "preferences")
    pairs = datasets.load_dataset(
        "json", data_files=str(to / "train.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    ).cast_column("images", datasets.List(datasets.Image()))
    folder = tiny_folder(tmp_path / "model", "qwen2_5_vl")
    config = trl.DPOConfig(
        output_dir=str(tmp_path / "dpo"),
        max_steps=2,
        per_device_train_batch_size=2,
        max_length=None,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = trl.DPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(folder),
        args=config,
        train_dataset=pairs,
        processing_class=AutoProcessor.from_pretrained(folder),
    )
    done = trainer.train()
    assert done.global_step == 2
    # Before the first step both answers are as likely as with the reference: log 2.
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert trainer.state.log_history[0]["logps/chosen"] != 0
