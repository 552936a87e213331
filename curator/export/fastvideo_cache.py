"""Caches of FastVideo for Wan: Parquet with latents and texts in float32.

FastVideo shifts and scales latents at each step of the training, so they are means as the encoder
returns them. It reads all numbers as float32, whatever the column with their type says, and reads a
row group for each row.

Source: FastVideo 2f3d4074, the same files as in 0.2.1: `fastvideo/dataset/dataloader/schema.py` and
`record_schema.py`, `dataset/utils.py`, `training/training_utils.py`.
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from curator.dataset.tar_reader import Shard
from curator.export.job import Job
from curator.export.window_values import (
    WAN_VAE,
    ValueExporter,
    ValueOptions,
    WindowValue,
    latents_of,
)

if TYPE_CHECKING:
    from torch import Tensor

_TENSORS = ("vae_latent", "text_embedding")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        *(
            (f"{name}_{part}", kind)
            for name in _TENSORS
            for part, kind in (
                ("bytes", pa.binary()), ("shape", pa.list_(pa.int64())), ("dtype", pa.string())
            )
        ),
        ("file_name", pa.string()), ("caption", pa.string()), ("media_type", pa.string()),
        ("width", pa.int64()), ("height", pa.int64()), ("num_frames", pa.int64()),
        ("duration_sec", pa.float64()), ("fps", pa.float64()),
    ]
)  # fmt: skip
"""Columns of `pyarrow_schema_t2v`; `num_frames` counts those of the latents."""


class FastVideoCache(ValueExporter[ValueOptions, None]):
    """Writes `<split>/<bucket>_<number>-<hash>-<settings>.parquet`, one per shard."""

    about = "<split>/*.parquet, a row per window with latents and text: FastVideo, Wan"
    options_type = ValueOptions
    suffixes = (".parquet",)
    reader = "FastVideo"
    latent_facts = latents_of(WAN_VAE, scaled=False)

    def shard(self, job: Job, shard: Shard) -> None:
        """Writes a shard's table."""
        key = f"{shard.split}/{self.object_name(job, shard)}.parquet"
        if job.place.size(key) is not None:
            self.reuse(job, shard, key)
            return
        # Numbers of latents do not compress.
        plain = {f"{name}_bytes" for name in _TENSORS}
        names = {field.name for field in SCHEMA}
        with (
            job.place.create(key) as output,
            pq.ParquetWriter(
                output,
                SCHEMA,
                compression={name: "none" if name in plain else "zstd" for name in names},
                use_dictionary=False,
                write_statistics=False,
            ) as writer,
        ):
            for clip in self.clips(job, shard):
                rows = [_row(window) for window in self.values(job, clip)]
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                job.exported.add(bytes=sum(len(row[name]) for row in rows for name in plain))


def _row(window: WindowValue) -> dict[str, Any]:
    assert window.text is not None
    name = f"{window.name}.mp4"
    return {
        "id": name, "file_name": name, "caption": window.clip.text, "media_type": "video",
        "width": window.size[0], "height": window.size[1],
        "num_frames": window.latents.shape[1],
        "duration_sec": float(window.n_frames / window.fps), "fps": float(window.fps),
        **_tensor("vae_latent", window.latents), **_tensor("text_embedding", window.text),
    }  # fmt: skip


def _tensor(name: str, tensor: "Tensor") -> dict[str, Any]:
    array = tensor.float().numpy()
    return {
        f"{name}_bytes": array.astype("<f4", copy=False).tobytes(),
        f"{name}_shape": list(array.shape),
        f"{name}_dtype": "float32",
    }
