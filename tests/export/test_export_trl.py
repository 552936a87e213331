"""Preference pairs in a real trainer; skipped where TRL and datasets are not installed."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_samples import made_clips
from test_export_annotations import SETTINGS, annotated
from tiny_vlm import tiny_folder

from curator.export import export
from curator.recipe import load_recipe


def test_dpo_takes_steps_on_what_is_exported(tmp_path: Path) -> None:
    """Pins messages and images against TRL's own reading, with a small Qwen2.5-VL."""
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    from transformers import AutoModelForImageTextToText, AutoProcessor

    own = {"source_start_frame": 40, "source_start_s": 2.0}
    clips = [replace(clip, changes=own) for clip in made_clips()]
    out = annotated(tmp_path / "out", clips, load_recipe("quickstart", SETTINGS).caption)
    export(str(out), str(tmp_path / "to"), "preferences")
    pairs = datasets.load_dataset(
        "json",
        data_files=str(tmp_path / "to" / "train.jsonl"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
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
