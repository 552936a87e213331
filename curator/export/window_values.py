"""Latents of windows with their texts, for formats that hold values in place of videos.

A trainer takes what its latents are for granted: mean or sample, scaled or not, of which VAE. A
format names these facts, and the export refuses values that declare others, or do not declare them.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, TypeVar

from curator.dataset.tar_reader import Shard
from curator.errors import ShardError, UsageError, raised_as, unknown_key
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job, ShardClip
from curator.family import Array, Family, FamilyError, FamilyVersion, Scalar
from curator.frame_axes import Windows
from curator.frame_size import parsed_sides
from curator.value_header import HeaderError

if TYPE_CHECKING:
    from torch import Tensor

Expected = Mapping[str, Sequence[Scalar] | None]
"""The values of each fact that a trainer can use; None if it can use all."""
WAN_VAE = "AutoencoderKLWan"
WAN_TEXT: Expected = {
    "encoder": ("UMT5EncoderModel",), "column": ("caption",), "template": ("{text}",),
    "skip": (0,), "layer": (-1,),
}  # fmt: skip
"""The model's output for all tokens of the caption alone."""
WAN_TOKENS = 512
"""Tokens of a text that Wan reads; trainers cut or refuse longer ones."""


def latents_of(vae: str, *, scaled: bool, samples: Sequence[str] = ("mean",)) -> Expected:
    """Returns the facts of latents for a trainer.

    Args:
        vae: Class of the VAE in diffusers.
        scaled: Whether latents are normalised as in the pipelines of that class.
        samples: `mean` of the distribution, a `draw` from it, or both if the trainer's files say
            which it is.
    """
    return {
        "vae": (vae,), "layout": ("CTHW",), "sample": tuple(samples), "scaled": (scaled,),
        "size": None,
    }  # fmt: skip


class ValueOptions(ExporterOptions):
    """Options of formats that hold latents and texts."""

    latents: str = "latents"
    """name of the family with the latents (default: latents)"""
    text: str | None = None
    """name of the family with a vector for each token of the caption (default: the only one that
    the samples have)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowValue:
    """The values of a window.

    Attributes:
        clip: The clip.
        start: First frame of the window.
        n_frames: Frames of the window.
        fps: Frames per second of the window.
        size: Width and height of the frames that were encoded.
        latents: [C, T, H, W].
        text: [tokens, d], without padding; None if the format asks for no text.
    """

    clip: ShardClip
    start: int
    n_frames: int
    fps: Fraction
    size: tuple[int, int]
    latents: "Tensor"
    text: "Tensor | None"

    @property
    def name(self) -> str:
        """Name of the window, unique in an export."""
        return f"{self.clip.key}-{self.start:05d}"


ValueOptionsT = TypeVar("ValueOptionsT", bound=ValueOptions)
ResultT = TypeVar("ResultT")


class ValueExporter(Exporter[ValueOptionsT, ResultT]):
    """A format with an entry for each window.

    Attributes:
        reader: Name of the trainer, for messages.
        latent_facts: Facts that the trainer takes for granted of latents.
        text_facts: The same for texts.
        max_tokens: Maximum number of tokens that the trainer reads.
    """

    records = "windows"
    reader: ClassVar[str]
    latent_facts: ClassVar[Expected]
    text_facts: ClassVar[Expected] = WAN_TEXT
    max_tokens: int = WAN_TOKENS

    def begin(self, job: Job) -> None:
        """Chooses the families; raises `UsageError` if the trainer would misread their values."""
        declared = map(FamilyVersion.from_json, job.shards.declared.values())
        versions = {version.family.name: version for version in declared}
        self._latents = named_family(versions, self.options.latents)
        family = self._latents.family
        if family.windows is None or len(getattr(family.content, "axes", ())) != 4:
            raise UsageError(
                f"--latents {family.name}: expected values [C, T, H, W] of windows, which name "
                "their frames; `Annotator.windows` makes them"
            )
        self.windows: Windows = family.windows
        self.check_facts(family, self.latent_facts)
        self.facts = family.facts
        with raised_as(UsageError, ValueError, of=f"{family.name!r}: "):
            self.size = parsed_sides(family.facts["size"])
        self._text = self.text_family(versions)
        used = {version.family.member for version in (self._latents, self._text) if version}
        self._needs = sorted(used)
        job.exported.left_members = tuple(sorted(set(job.shards.declared) - used))

    def text_family(self, versions: Mapping[str, FamilyVersion]) -> FamilyVersion | None:
        """Returns the family of texts, or None for a format that does without."""
        found = {name: each for name, each in versions.items() if _is_text(each.family)}
        if self.options.text is None and len(found) != 1:
            raise UsageError(
                "--text: expected the name of a family with a vector for each token, such as "
                f"[tokens, d]; the samples have {', '.join(found) or 'none'}"
            )
        text = named_family(found, self.options.text or next(iter(found)))
        self.check_facts(text.family, self.text_facts)
        return text

    def check_facts(self, family: Family, expected: Expected) -> None:
        """Raises `UsageError` if a family does not declare the facts that the trainer expects."""
        for name, usable in expected.items():
            wanted = "any value" if usable is None else " or ".join(map(repr, usable))
            if name not in family.facts:
                known = ", ".join(family.facts) or "no facts"
                raise UsageError(
                    f"{family.name!r} does not declare {name!r}, and {self.reader} expects "
                    f"{wanted}; it declares {known}. Add the fact to the family's `facts`, so that "
                    "its values are computed again with it"
                )
            if usable is not None and family.facts[name] not in usable:
                raise UsageError(
                    f"{family.name!r} was computed with {name} = {family.facts[name]!r}, and "
                    f"{self.reader} expects {wanted}: run `curate run` with other settings of the "
                    "stage that makes it"
                )

    def clips(self, job: Job, shard: Shard) -> Iterator[ShardClip]:
        """Yields the clips of a shard that have all values, and counts their windows."""
        for clip in job.clips(shard, needs=self._needs):
            yield clip
            job.exported.add(records=len(self.windows.starts(int(clip.fields["n_frames"]))))

    def object_name(self, job: Job, shard: Shard) -> str:
        """Returns a name of a shard's object that identifies its input and settings."""
        families = [version.to_json() for version in (self._latents, self._text) if version]
        fingerprint = job.fingerprint(shard, type(self).__name__, self.version, families)
        return f"{shard.name.removesuffix('.tar').replace('/', '_')}-{fingerprint[:8]}"

    def reuse(self, job: Job, shard: Shard, *keys: str) -> None:
        """Counts objects of a shard that exist, and the clips and windows in them."""
        for _ in self.clips(job, shard):
            pass
        job.place.reuse(*keys)

    def values(self, job: Job, clip: ShardClip) -> list[WindowValue]:
        """Returns the values of the windows of a clip.

        Raises:
            ShardError: A value is damaged, or does not belong to the clip.
            UsageError: The trainer cannot read as many tokens.
        """
        fps = Fraction(clip.fields["fps_fraction"])
        latents, starts = self._read(job, clip, self._latents, fps)
        text = None if self._text is None else self._read(job, clip, self._text, fps)[0]
        if text is not None and len(text) > self.max_tokens:
            raise UsageError(
                f"the caption of {clip.key} has {len(text)} tokens, and {self.reader} reads "
                f"{self.max_tokens}: compute texts of at most so many, or leave out the clip with "
                "--where"
            )
        return [
            WindowValue(
                clip=clip, start=start, n_frames=self.windows.frames,
                fps=fps / self.windows.stride, size=self.size,
                # A slice would be stored with the values of all windows.
                latents=own.clone(), text=text,
            )
            for start, own in zip(starts, latents, strict=True)
        ]  # fmt: skip

    def _read(
        self, job: Job, clip: ShardClip, version: FamilyVersion, fps: Fraction
    ) -> tuple["Tensor", tuple[int, ...]]:
        """Returns a value, and the frames that its header names."""
        import torch

        tar, offset, n_bytes = clip.members[version.family.member]
        data = job.shards.store.read_range(job.shards.key(tar), offset, offset + n_bytes)
        name = f"{job.shards.uri(tar)}: {clip.key}: {version.family.name}: "
        with raised_as(ShardError, FamilyError, HeaderError, of=name):
            value, header = version.read(data, clip.fields, fps)
        return torch.as_tensor(value), (header.frames if header is not None else None) or ()


def dtype_name(tensor: "Tensor") -> str:
    """Returns the name of a tensor's dtype, such as `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def saved(value: object) -> bytes:
    """Returns a value as `torch.save` writes it."""
    import torch

    output = io.BytesIO()
    torch.save(value, output)
    return output.getvalue()


def named_family(versions: Mapping[str, FamilyVersion], name: str) -> FamilyVersion:
    """Returns a family by its name; raises `UsageError` if there is none."""
    if name not in versions:
        raise UsageError(unknown_key(name, versions, "family with such values"))
    return versions[name]


def _is_text(family: Family) -> bool:
    content = family.content
    return isinstance(content, Array) and len(content.axes) == 2 and content.axes[0] == "tokens"
