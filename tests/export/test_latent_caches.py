"""Caches of latents and texts for trainers: each field that their readers use, and what is refused.

What the trainers' own readers make of the same files is in `benchmarks/results/consumers.md`.
"""

import io
import json
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from captioned import work_here
from command_line import Curate
from film_makers import write_video
from numbered_films import numbered
from place import Place
from safetensors import safe_open

from curator.errors import ShardError, UsageError
from curator.export import Exported, export

OWN = '''"""Annotators whose values say from which frames they are."""

import torch

from curator.family import Array, Family, Scope, Windows
from curator.stage import Annotator, StageConfig

WAN = {"vae": "AutoencoderKLWan", "sample": "mean", "scaled": True, "layout": "CTHW",
       "size": "24x16"}
TEXT = {"encoder": "UMT5EncoderModel", "column": "caption", "template": "{text}", "skip": 0,
        "layer": -1}
OTHERS = {
    "latents": {},
    "raw": {"scaled": False},
    "drawn": {"sample": "draw"},
    "ltx": {"vae": "AutoencoderKLLTX2Video", "size": "64x32"},
    "unknown": {"scaled": None},
}


def values(name, start):
    generator = torch.Generator().manual_seed(start * 10000 + sum(name.encode()))
    return torch.randn(16, 5, 2, 3, generator=generator).to(torch.bfloat16)


class Latents(Annotator[StageConfig]):
    name, version = "own_latents", 1
    windows = Windows(frames=17, every=16, stride=2)
    families = tuple(
        Family(name, Scope.CLIP, Array("bf16", (16, 5, 2, 3)), member=f"{name}.safetensors",
               facts={k: v for k, v in (WAN | other).items() if v is not None})
        for name, other in OTHERS.items()
    )

    def process(self, unit):
        return [{name: values(name, window.start) for name in OTHERS} for window in unit]


class Texts(Annotator[StageConfig]):
    name, version, columns, frames = "own_texts", 1, ("caption",), ()
    families = (
        Family("text_vectors", Scope.CLIP, Array("bf16", ("tokens", 8)),
               member="text_vectors.safetensors", facts=TEXT),
    )

    def process(self, unit):
        return [torch.arange(24.0).reshape(3, 8).to(torch.bfloat16) for _ in unit]


class Features(Texts):
    name = "own_features"
    families = (
        Family("shifted", Scope.CLIP, Array("f16", ("tokens", 8)),
               member="shifted.safetensors", facts=TEXT | {"layer": -2}),
        Family("features", Scope.CLIP, Array("f16", ("tokens", 8)),
               member="features.safetensors", facts={"features": "ltx-2 19b"}),
        Family("nameless", Scope.CLIP, Array("f16", ("tokens", 8)), member="nameless.npy"),
    )

    def process(self, unit):
        text = torch.arange(24.0).reshape(3, 8).half().numpy()
        names = ("features", "nameless", "shifted")
        return [dict.fromkeys(names, text) for _ in unit]
'''
RECIPE = {
    "stages": [{"use": f"cached_values:{name}"} for name in ("Latents", "Texts", "Features")],
    "propose": {"min_s": 0.3, "max_s": 2.0, "boundary_threshold": 0.99},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}  # fmt: skip
STARTS = (0, 16)
TEXT = torch.arange(24.0).reshape(3, 8).to(torch.bfloat16)
FORMATS = {
    "ltx2-cache": {"latents": "ltx"},
    "fastvideo-cache": {"latents": "raw", "text": "text_vectors"},
    "musubi-cache": {"text": "text_vectors"},
    "automodel-cache": {"text": "text_vectors"},
    "dfm-cache": {"text": "text_vectors"},
}


def latents(name: str, start: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(start * 10000 + sum(name.encode()))
    return torch.randn(16, 5, 2, 3, generator=generator).to(torch.bfloat16)


@dataclass(frozen=True)
class Cached(Place):
    """Two films, of 2 s and .36 s; the second is shorter than a window."""

    settings = ()
    recipe: str = ""

    @property
    def clip(self) -> dict[str, Any]:
        """The clip with values."""
        (clip,) = (clip for clip in self.clips() if clip["n_frames"] == 50)
        return clip

    def export(self, to: Path, form: str, **options: object) -> Exported:
        return export(str(self.out), str(to), form, options=FORMATS[form] | options)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cached]:
    folder = tmp_path_factory.mktemp("cached")
    (folder / "cached_values.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    (folder / "in").mkdir()
    for name, n_frames in (("long", 50), ("short", 9)):
        write_video(folder / "in" / f"{name}.mp4", numbered(n_frames), fps=Fraction(25), gop=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[1]}")
        work_here(patch)
        place = Cached(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        summary = place.run()
        assert summary["counts"]["kept"] == 2
        yield place


def equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


def loaded(path: Path | io.BytesIO) -> Any:  # noqa: ANN401 - what a file holds
    return torch.load(path, weights_only=True)


def test_ltx2_latents_have_one_file_for_each_window(cached: Cached, tmp_path: Path) -> None:
    done = cached.export(tmp_path, "ltx2-cache")
    assert (done.n_clips, done.n_records, done.n_lacking) == (1, 2, 1)
    key, folder = cached.clip["clip_id"], tmp_path / "train" / ".precomputed"
    for start in STARTS:
        found = loaded(folder / "latents" / f"{key}-{start:05d}.pt")
        assert equal(found.pop("latents"), latents("ltx", start))
        assert found == {"num_frames": 5, "height": 2, "width": 3, "fps": 12.5}
    lines = [json.loads(line) for line in (tmp_path / "train/captions.jsonl").open()]
    assert lines == [
        {"media_path": f"{key}-{start:05d}.mp4", "caption": cached.clip["caption"]}
        for start in STARTS
    ]
    assert not (folder / "conditions").exists()


def test_ltx2_conditions_are_padded_on_the_left(cached: Cached, tmp_path: Path) -> None:
    cached.export(tmp_path, "ltx2-cache", text="features")
    key = cached.clip["clip_id"]
    for start in STARTS:
        path = tmp_path / "train" / ".precomputed" / "conditions" / f"{key}-{start:05d}.pt"
        found = loaded(path)
        assert set(found) == {
            "video_prompt_embeds", "audio_prompt_embeds", "prompt_attention_mask"
        }  # fmt: skip
        for name in ("video_prompt_embeds", "audio_prompt_embeds"):
            assert equal(found[name][-3:], TEXT.half())
            assert found[name].shape == (1024, 8)
            assert not found[name][:-3].any()
        assert found["prompt_attention_mask"].nonzero().flatten().tolist() == [1021, 1022, 1023]


def test_musubi_finds_windows_and_texts_by_the_names_of_files(
    cached: Cached, tmp_path: Path
) -> None:
    """Pins names as the reader takes them apart: clip, start-frames, size, architecture."""
    cached.export(tmp_path, "musubi-cache")
    key, folder = cached.clip["clip_id"], tmp_path / "train"
    names = [f"{key}_{start:05d}-017_0024x0016_wan.safetensors" for start in STARTS]
    text = f"{key}_wan_te.safetensors"
    assert {path.name for path in folder.iterdir()} == {*names, text, "musubi.toml"}
    for start, name in zip(STARTS, names, strict=True):
        with safe_open(folder / name, "pt") as file:
            assert list(file.keys()) == ["latents_5x2x3_bfloat16"]
            assert equal(file.get_tensor("latents_5x2x3_bfloat16"), latents("latents", start))
            assert file.metadata() == {
                "architecture": "wan", "format_version": "1.0.1", "width": "24", "height": "16",
                "frame_count": "17",
            }  # fmt: skip
    with safe_open(folder / text, "pt") as file:
        assert equal(file.get_tensor("varlen_t5_bfloat16"), TEXT)
        assert file.metadata()["caption1"] == cached.clip["caption"]
    config = (folder / "musubi.toml").read_text()
    for line in ("resolution = [24, 16]", f'cache_directory = "{folder}"', "target_frames = [17]"):
        assert line in config.splitlines()


def test_fastvideo_gets_float32_and_means_without_scale(cached: Cached, tmp_path: Path) -> None:
    cached.export(tmp_path, "fastvideo-cache")
    (path,) = tmp_path.glob("train/*.parquet")
    rows = pq.read_table(path).to_pylist()
    key = cached.clip["clip_id"]
    assert [row["id"] for row in rows] == [f"{key}-{start:05d}.mp4" for start in STARTS]
    for start, row in zip(STARTS, rows, strict=True):
        for name, value in (("vae_latent", latents("raw", start)), ("text_embedding", TEXT)):
            array = np.frombuffer(row[f"{name}_bytes"], np.float32)
            found = torch.from_numpy(array.reshape(row[f"{name}_shape"]).copy())
            assert equal(found, value.float())
            assert row[f"{name}_dtype"] == "float32"
        facts = {name: row[name] for name in ("caption", "media_type", "width", "height")}
        assert facts == {
            "caption": cached.clip["caption"], "media_type": "video", "width": 24, "height": 16,
        }  # fmt: skip
        assert (row["num_frames"], row["fps"], row["duration_sec"]) == (5, 12.5, 1.36)


@pytest.mark.parametrize(("name", "is_mean"), [("latents", True), ("drawn", False)])
def test_automodel_texts_have_one_length(
    cached: Cached, tmp_path: Path, name: str, is_mean: bool
) -> None:
    cached.export(tmp_path, "automodel-cache", latents=name, tokens=6)
    index = json.loads((tmp_path / "train/metadata.json").read_text())
    assert index["shards"] == ["metadata_shard_0000.json"]
    entries = json.loads((tmp_path / "train/metadata_shard_0000.json").read_text())
    assert [Path(entry["cache_file"]).stem[-5:] for entry in entries] == ["00000", "00016"]
    for start, entry in zip(STARTS, entries, strict=True):
        assert entry["bucket_resolution"] == [24, 16]
        assert entry["aspect_ratio"] == 1.5
        assert Path(entry["cache_file"]).parent == tmp_path / "train" / "24x16"
        found = loaded(Path(entry["cache_file"]))
        assert equal(found["video_latents"], latents(name, start)[None])
        assert equal(found["text_embeddings"][:, :3], TEXT[None])
        assert found["text_embeddings"].shape == (1, 6, 8)
        assert not found["text_embeddings"][:, 3:].any()
        assert found["deterministic_latents"] is is_mean
        assert (found["prompt"], found["num_frames"]) == (cached.clip["caption"], 17)


def test_dfm_tars_are_opened_by_energon(cached: Cached, tmp_path: Path) -> None:
    cached.export(tmp_path, "dfm-cache")
    (path,) = tmp_path.glob("train/*.tar")
    key, samples = cached.clip["clip_id"], {}
    with tarfile.open(path) as tar:
        for member in tar:
            samples[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    assert list(samples) == [
        f"{key}-{start:05d}.{suffix}" for start in STARTS for suffix in ("pth", "pickle", "json")
    ]
    for start in STARTS:
        name = f"{key}-{start:05d}"
        assert equal(loaded(io.BytesIO(samples[f"{name}.pth"])), latents("latents", start))
        assert equal(pickle.loads(samples[f"{name}.pickle"]), TEXT)
        facts = json.loads(samples[f"{name}.json"])
        assert (facts["start_frame"], facts["processed_frames"], facts["fps"]) == (start, 17, 12.5)
        assert (facts["processed_width"], facts["processed_height"]) == (24, 16)
        assert facts["caption"] == cached.clip["caption"]

    counts = {"shard_counts": {f"train/{path.name}": 2}}
    assert yaml.safe_load((tmp_path / ".nv-meta/.info.yaml").read_text()) == counts
    from megatron.energon import (
        DefaultTaskEncoder,
        WorkerConfig,
        get_loader,
        get_val_dataset,
        stateless,
    )
    from megatron.energon.task_encoder.cooking import Cooker

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        cookers = (Cooker(stateless(lambda sample: sample)),)

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(
        str(tmp_path), split_part="train", worker_config=config, batch_size=None,
        task_encoder=Encoder(),
    )  # fmt: skip
    found = {sample["__key__"].rpartition("/")[2]: sample for sample in get_loader(dataset)}
    assert set(found) == {f"{key}-{start:05d}" for start in STARTS}
    for start in STARTS:
        sample = found[f"{key}-{start:05d}"]
        assert equal(sample["pth"], latents("latents", start))
        assert equal(sample["pickle"], TEXT)


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_export_writes_nothing_new(cached: Cached, tmp_path: Path, form: str) -> None:
    """Pins equal bytes, counts, and what samples have beyond the format."""
    first = cached.export(tmp_path / "to", form)
    assert "drawn.safetensors" in first.left_members
    used = FORMATS[form].get("latents", "latents")
    assert f"{used}.safetensors" not in first.left_members
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = cached.export(tmp_path / "to", form)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after
    counts = [(done.n_clips, done.n_records, done.n_lacking) for done in (first, again)]
    assert counts == [(1, 2, 1)] * 2
    # Only the lists of a split are written again.
    assert again.n_objects == (form == "ltx2-cache")
    assert again.n_others == 0


REFUSED = {
    "scaled": ("fastvideo-cache", {"latents": "latents"},
               r"'latents' was computed with scaled = True, and FastVideo expects False"),
    "not scaled": ("musubi-cache", {"latents": "raw"},
                   r"'raw' was computed with scaled = False, and musubi-tuner expects True"),
    "drawn": ("musubi-cache", {"latents": "drawn"}, "sample = 'draw', and musubi-tuner expects"),
    "another VAE": ("dfm-cache", {"latents": "ltx"},
                    "vae = 'AutoencoderKLLTX2Video', and NeMo DFM expects 'AutoencoderKLWan'"),
    "VAE of Wan": ("ltx2-cache", {"latents": "latents"},
                   "vae = 'AutoencoderKLWan', and the LTX-2 trainer expects 'AutoencoderKLLTX2V"),
    "no fact": ("automodel-cache", {"latents": "unknown"},
                "'unknown' does not declare 'scaled', and NeMo Automodel expects True; it"),
    "texts without facts": ("dfm-cache", {"text": "nameless"},
                            "'nameless' does not declare 'encoder'.*it declares no facts"),
    "texts of another encoder": ("dfm-cache", {"text": "features"}, "does not declare 'encoder'"),
    "texts of another layer": ("dfm-cache", {"text": "shifted"},
                               "'shifted' was computed with layer = -2, and NeMo DFM expects -1"),
    "which text": ("dfm-cache", {"text": None}, "--text: .* text_vectors"),
    "no text": ("dfm-cache", {"text": "raw"}, "unknown family with such values 'raw'; known"),
    "no latents": ("dfm-cache", {"latents": "latent"}, "'latent'.*latents"),
    "no windows": ("dfm-cache", {"latents": "text_vectors"}, "--latents text_vectors: expected"),
    "too many tokens": ("automodel-cache", {"tokens": 2}, "has 3 tokens, and NeMo Automodel reads"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_a_trainer_would_misread_are_refused(
    cached: Cached, tmp_path: Path, name: str
) -> None:
    form, options, words = REFUSED[name]
    with pytest.raises(UsageError, match=words):
        cached.export(tmp_path / "to", form, **options)


def test_a_value_of_another_clip_is_refused(cached: Cached, tmp_path: Path) -> None:
    """Pins that headers are checked: a changed number does not reach the trainer."""
    changed = cached.copy(tmp_path / "changed")
    (tar,) = changed.out.glob("shards/*/train-*.tar")
    data = tar.read_bytes()
    stored = latents("latents", 0).view(torch.int16).numpy().tobytes()
    assert data.count(stored) == 1
    tar.write_bytes(data.replace(stored, bytes([stored[0] ^ 1]) + stored[1:]))
    with pytest.raises(ShardError, match=r"latents: .*the value's bytes have the SHA-256"):
        changed.export(tmp_path / "to", "musubi-cache")


def test_the_command_says_what_is_left_out(cached: Cached, tmp_path: Path, curate: Curate) -> None:
    said = curate(
        "export", cached.out, tmp_path / "to", "--format", "musubi-cache", "--text", "text_vectors"
    )
    assert "windows: 2" in said
    assert "1 clip left out because they lack values that musubi-cache holds" in said
    assert "left out of each sample: drawn.safetensors, features.safetensors" in said
