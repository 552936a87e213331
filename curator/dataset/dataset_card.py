"""The dataset card of the shards: gives Hugging Face `datasets` the tars and their types.

Without a card, `datasets` reads the indexes of the tars as tars. It also infers the types of the
JSON from the first samples: a field that is null in all of them gets a type that no later value
fits. The card names the tars of each split, so that `datasets` reads no tar outside the manifest,
and declares the type of each member.

Source: `Features` and the packaged module `webdataset` of `datasets` 3.3 and 5.2.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

import yaml

from curator.dataset.tar_reader import COLUMNS, Declared, Split
from curator.family import Family, Place
from curator.measures.score_list import SCORES
from curator.records.clips import FITTED, LICENSED, WINDOWED, ClipFormat

CARD = "README.md"
"""File name of the card, in the folder that it describes."""

SPLIT_NAMES = {"train": "train", "val": "validation"}
"""Names of the splits in `datasets`."""

_TEXTS = (
    "key", "clip_id", "source_id", "source_uri", "medium", "source_time_base", "cut_mode", "audio",
    "fps_fraction", "split", "content_type", "caption", "caption_model", "mp4_sha256",
)  # fmt: skip
_WHOLE = (
    "source_start_frame", "source_end_frame", "source_start_pts", "source_end_pts", "n_frames",
    "width", "height",
)  # fmt: skip
_REAL = ("source_start_s", "source_end_s", "fps", "duration", *FITTED)

TEXT = """
# Clips for training

WebDataset tars made by `curate run`. A sample has the members `mp4` (H.264 or VP9, constant rate
from time 0, a key frame first), `json` (what is known of the clip) and `txt` (its caption){more}. A
folder holds the clips of one class of resolution, shape and least length.

- Hugging Face: `load_dataset(FOLDER, split="train", streaming=True)`, as the header above says
- Megatron-Energon: this folder as path, with a cooker; `.nv-meta` and `*.tar.idx` are there
- webdataset: the tars that the header above names
"""


def dataset_card(
    tars: Mapping[Split, Sequence[str]],
    *,
    with_embedding: bool = False,
    with_id: bool = False,
    with_annotation: bool = False,
    with_windows: bool = False,
    formats: Sequence[ClipFormat] = ("mp4",),
    declared: Declared = MappingProxyType({}),
    scores: Iterable[str] = (),
    licenses: Mapping[str, int] = MappingProxyType({}),
) -> bytes:
    """Returns the card of a folder of tars: Markdown in UTF-8 with a YAML header.

    Args:
        tars: Names relative to the folder, by split; a split without tars is left out.
        with_embedding: Whether samples have the member `npy`.
        with_id: Whether samples have the member `id`.
        with_annotation: Whether the JSON has a model's annotation of each window. The card types
            no `structured`, `answers` or `extra`, because their fields vary.
        with_windows: Whether the JSON has the columns of windows.
        formats: Formats of the clips; a sample has one of these members.
        declared: Declarations of families, by member, or by name for families of columns.
        scores: Names of further scores in the JSON, such as those of custom measures.
        licenses: Number of samples by licence; the JSON has the columns of rights if there is any.
    """
    families = [Family.from_json(value) for value in declared.values()]
    in_samples = [family for family in families if family.place is Place.SAMPLE]
    members = [family for family in in_samples if family.member]
    columns = [f.content.feature("")["struct"] for f in in_samples if not f.member]
    typed = [*_json_fields(scores), *(_annotation_fields() if with_annotation else ())]
    typed += map(_plain, WINDOWED, ("int64", "float64")) if with_windows else ()
    if licenses:
        typed += [*_plains("string", *LICENSED[:-1]), _plain(LICENSED[-1], "bool")]
    typed += [] if formats == ("mp4",) else [_plain("format", "string")]
    typed += [_struct(COLUMNS, *chain.from_iterable(columns))] if columns else []
    features = [_plain(name, "video" if name == "mp4" else "image") for name in formats]
    features += [_plain("txt", "string"), {"name": "json", "struct": typed}]
    features += [{"name": f.member, **f.content.feature(f.ending)} for f in members]
    if with_embedding:
        features.append({"name": "npy", "sequence": "float32"})
    if with_id:
        features.append(_plain("id", "int64"))
    features += [_plain("__key__", "string"), _plain("__url__", "string")]
    files = [{"split": SPLIT_NAMES[split], "path": [*own]} for split, own in tars.items() if own]
    text = _features_yaml(json.dumps(features))
    if files:
        text += _yaml({"configs": [{"config_name": "default", "data_files": files}]})
    more = (
        "" if formats == ("mp4",) else "; still images have one of `jpg`, `png` and `webp` instead"
    )
    more += "; `npy` is an embedding" if with_embedding else ""
    more += "".join(f"; `{f.member}` is of the family {f.name}" for f in members)
    more += "; `id` is a whole number made from the key" if with_id else ""
    text = f"---\n{text}---\n{TEXT.format(more=more)}"
    return "\n".join([text, *_license_lines(licenses)]).encode() if licenses else text.encode()


def _license_lines(licenses: Mapping[str, int]) -> Iterator[str]:
    yield from ("## Licences", "", "| licence | samples |", "|---|---|")
    for name, n_samples in licenses.items():
        yield f"| {' '.join(name.split()).replace('|', ' ')} | {n_samples} |"
    yield ""


@lru_cache(maxsize=8)
def _features_yaml(features: str) -> str:
    """Returns the YAML of features in JSON, which the folders of a run share."""
    return _yaml({"dataset_info": {"features": json.loads(features)}})


def _yaml(header: dict[str, Any]) -> str:
    return yaml.dump(header, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Writes YAML without anchors: repeats a list wherever it occurs."""

    def ignore_aliases(self, data: object) -> bool:
        """Returns True: no value becomes an anchor."""
        return True


def _json_fields(scores: Iterable[str]) -> list[dict[str, Any]]:
    names = (name for name in dict.fromkeys([*SCORES, *scores]) if name != "fps")
    return [
        *_plains("string", *_TEXTS),
        *_plains("int64", *_WHOLE),
        *_plains("float64", *_REAL),
        _plain("source_is_vfr", "bool"),
        {"name": "tags", "sequence": "string"},
        _struct(
            "bucket",
            *_plains("int64", "resolution", "min_frames"),
            *_plains("string", "aspect", "content", "name"),
        ),
        _struct("crop", *_plains("int64", "x", "y", "width", "height")),
        _struct("models", *_plains("string", "shots", "scene")),
        _struct("scores", *_plains("float64", *names)),
    ]


def _annotation_fields() -> list[dict[str, Any]]:
    texts = ("short", "medium", "long", "content_type", "safety", "failure")
    windows = [*_plains("int64", "start_frame", "end_frame"), *_plains("string", *texts)]
    parts = [*_plains("string", "model", "prompt", "judge"), {"name": "windows", "list": windows}]
    return [
        _plain("caption_failure", "string"),
        _plain("caption_clip_score", "float64"),
        _struct("annotation", *parts),
    ]


def _plain(name: str, dtype: str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype}


def _plains(dtype: str, *names: str) -> list[dict[str, Any]]:
    return [_plain(name, dtype) for name in names]


def _struct(name: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "struct": list(parts)}
