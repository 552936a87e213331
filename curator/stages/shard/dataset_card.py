"""The dataset card of the shards, by which Hugging Face `datasets` finds and types them.

Without one that library goes by suffixes: it takes the indexes of the tars for tars, and guesses
the types of the JSON from the first samples, where a field that is null in all of them gets a type
that no later value fits. The card names the tars of each split, so that a tar outside the manifest
is not read, and the type of each member.

Source: `Features` and the packaged module `webdataset` of `datasets` 3.3 and 5.2.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from curator.measures.score_list import SCORES

CARD = "README.md"
"""Its name, in the folder that it speaks of."""

SPLIT_NAMES = {"train": "train", "val": "validation"}
"""What that library calls the splits."""

_TEXTS = (
    "key", "clip_id", "source_id", "source_uri", "source_time_base", "cut_mode", "audio",
    "fps_fraction", "split", "content_type", "caption", "caption_model", "mp4_sha256",
)  # fmt: skip
_WHOLE = (
    "source_start_frame", "source_end_frame", "source_start_pts", "source_end_pts", "n_frames",
    "width", "height",
)  # fmt: skip
_REAL = ("source_start_s", "source_end_s", "fps", "duration")

TEXT = """
# Clips for training

WebDataset tars made by `curate run`. A sample has the members `mp4` (H.264, constant rate from time
0, a key frame first), `json` (what is known of the clip) and `txt` (its caption){more}. A folder
holds the clips of one class of resolution, shape and least length.

- Hugging Face: `load_dataset(FOLDER, split="train", streaming=True)`, as the header above says
- Megatron-Energon: this folder as path, with a cooker; `.nv-meta` and `*.tar.idx` are there
- webdataset: the tars that the header above names
"""


def dataset_card(
    tars: Mapping[str, Sequence[str]],
    *,
    with_embedding: bool,
    with_id: bool,
    with_annotation: bool = False,
    text_vector_dims: int = 0,
    fields: Collection[str] | None = None,
) -> bytes:
    """Returns the card of a folder of tars, Markdown with a YAML header in UTF-8.

    Args:
        tars: Names relative to the folder, by split; a split without tars is left out.
        with_embedding: Whether samples have the member `npy`.
        with_id: Whether they have the member `id`.
        with_annotation: Whether their JSON has a model's annotation of each window; its
            `structured`, `answers` and `extra` have no fixed fields, and are not typed here.
        text_vector_dims: Dimensions of the member `text.npy`; 0 for no such member.
        fields: JSON fields of samples that another version wrote; None for those of this one.
    """
    features = list(
        _features(
            with_embedding=with_embedding,
            with_id=with_id,
            with_annotation=with_annotation,
            text_vector_dims=text_vector_dims,
            fields=fields,
        )
    )
    header = yaml.safe_dump({"dataset_info": {"features": features}}, sort_keys=False)
    # By hand: names of tars need no quotes, and writers of YAML take seconds for many.
    lines = ["---", header.rstrip()]
    if any(tars.values()):
        lines += ["configs:", "- config_name: default", "  data_files:"]
    for split, names in tars.items():
        if names:
            lines += [f"  - split: {SPLIT_NAMES[split]}", "    path:"]
            lines += [f"    - {name}" for name in names]
    more = "; `npy` is an embedding" if with_embedding else ""
    more += "; `text.npy` is an embedding of the caption" if text_vector_dims else ""
    more += "; `id` is a whole number made from the key" if with_id else ""
    return "\n".join([*lines, "---", TEXT.format(more=more)]).encode()


def _features(
    *,
    with_embedding: bool,
    with_id: bool,
    with_annotation: bool,
    text_vector_dims: int,
    fields: Collection[str] | None,
) -> Iterator[dict[str, Any]]:
    yield _plain("mp4", "video")
    yield _plain("txt", "string")
    annotated = _annotation_fields() if with_annotation else ()
    known = [*_json_fields(), *annotated]
    told = [field for field in known if fields is None or field["name"] in fields]
    yield {"name": "json", "struct": told}
    if text_vector_dims == 1:
        yield {"name": "text.npy", "sequence": "float32"}
    elif text_vector_dims == 2:
        yield {"name": "text.npy", "sequence": {"sequence": "float16"}}
    if with_embedding:
        yield {"name": "npy", "sequence": "float32"}
    if with_id:
        yield _plain("id", "int64")
    yield _plain("__key__", "string")
    yield _plain("__url__", "string")


def _json_fields() -> Iterator[dict[str, Any]]:
    yield from (_plain(name, "string") for name in _TEXTS)
    yield from (_plain(name, "int64") for name in _WHOLE)
    yield from (_plain(name, "float64") for name in _REAL)
    yield _plain("source_is_vfr", "bool")
    yield {"name": "tags", "sequence": "string"}
    yield _struct("bucket", "int64", "resolution", "min_frames", also=("aspect", "content", "name"))
    yield _struct("crop", "int64", "x", "y", "width", "height")
    yield _struct("models", "string", "shots", "descriptor")
    yield _struct("scores", "float64", *(name for name in SCORES if name != "fps"))


def _annotation_fields() -> Iterator[dict[str, Any]]:
    yield _plain("caption_failure", "string")
    yield _plain("caption_alignment", "float64")
    windows = [
        *(_plain(name, "int64") for name in ("start_frame", "end_frame")),
        *(
            _plain(name, "string")
            for name in ("short", "medium", "long", "content_type", "safety", "failure")
        ),
    ]
    names = ("model", "prompt", "judge")
    parts = [*(_plain(name, "string") for name in names), {"name": "windows", "list": windows}]
    yield {"name": "annotation", "struct": parts}


def _plain(name: str, dtype: str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype}


def _struct(name: str, dtype: str, *fields: str, also: Sequence[str] = ()) -> dict[str, Any]:
    parts = [_plain(field, dtype) for field in fields]
    return {"name": name, "struct": [*parts, *(_plain(field, "string") for field in also)]}
