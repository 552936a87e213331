"""Caches of the LTX-2 trainer: `.precomputed/latents/**.pt` and `.precomputed/conditions/**.pt`.

The trainer's encoder normalises latents, so they are means, scaled as in the pipelines of
diffusers. Its texts are features of the hidden states of all layers of Gemma, by a layer of the
checkpoint of LTX-2. A text encoder alone does not make them, so the export writes captions from
which the trainer's script makes `conditions`.

Source: `packages/ltx-trainer` of LTX-2 400fd31: `datasets.py`, `process_videos.py`,
`process_captions.py`, `trainer.py`.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from curator.dataset.tar_reader import Shard
from curator.export.job import Job
from curator.export.window_values import Expected, ValueExporter, ValueOptions, latents_of, saved
from curator.family import FamilyVersion

if TYPE_CHECKING:
    from torch import Tensor


class Ltx2Options(ValueOptions):
    """Options of the format."""

    text: str | None = None
    """name of the family with features of texts (default: none; captions.jsonl for
    process_captions.py)"""


class Ltx2Cache(ValueExporter[Ltx2Options, bytes]):
    """Writes `<split>/.precomputed/{latents,conditions}/<window>.pt`, `<split>/captions.jsonl`."""

    about = (
        "<split>/.precomputed/latents/*.pt and captions.jsonl, latents of windows: LTX-2 trainer"
    )
    options_type = Ltx2Options
    suffixes = (".pt",)
    reader = "the LTX-2 trainer"
    latent_facts = latents_of("AutoencoderKLLTX2Video", scaled=True)
    # Those of the checkpoint of 19B parameters, which are the same for video and sound.
    text_facts: ClassVar[Expected] = {"features": ("ltx-2 19b",)}
    max_tokens = 1024

    def text_family(self, versions: Mapping[str, FamilyVersion]) -> FamilyVersion | None:
        """Returns the family that `--text` names."""
        return None if self.options.text is None else super().text_family(versions)

    def shard(self, job: Job, shard: Shard) -> bytes:
        """Writes the files of a shard; returns its lines of `captions.jsonl`."""
        lines = b""
        folder = f"{shard.split}/.precomputed"
        for clip in self.clips(job, shard):
            for window in self.values(job, clip):
                _, n_frames, height, width = window.latents.shape
                latents = {
                    "latents": window.latents, "num_frames": n_frames, "height": height,
                    "width": width, "fps": float(window.fps),
                }  # fmt: skip
                job.place.put(f"{folder}/latents/{window.name}.pt", saved(latents))
                if window.text is not None:
                    data = saved(self._conditions(window.text))
                    job.place.put(f"{folder}/conditions/{window.name}.pt", data)
                line = {"media_path": f"{window.name}.mp4", "caption": clip.text}
                lines += orjson.dumps(line) + b"\n"
        return lines

    def _conditions(self, text: "Tensor") -> dict[str, Any]:
        """Returns the features of a caption, padded on the left as by the trainer's script."""
        import torch

        n_padding = self.max_tokens - len(text)
        features = torch.nn.functional.pad(text, (0, 0, n_padding, 0))
        mask = torch.arange(self.max_tokens) >= n_padding
        names = ("video_prompt_embeds", "audio_prompt_embeds")
        return dict.fromkeys(names, features) | {"prompt_attention_mask": mask}

    def split(self, job: Job, split: str, results: Iterator[bytes]) -> None:
        """Writes the captions by the names of the files of latents."""
        with job.place.create(f"{split}/captions.jsonl") as output:
            output.writelines(results)
