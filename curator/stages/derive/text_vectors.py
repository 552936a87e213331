"""The annotator `text_vectors`: a vector for each token of a text, by an encoder of transformers.

    stages:
      - use: text_vectors
        config: {model: Wan2.1-T2V-1.3B-Diffusers, max_tokens: 512}

T5, UMT5, Gemma, Qwen and other models of texts have this one road. A text is computed once, however
many clips have it. The value has no padding, so its length is the mask of a trainer that pads it.
"""

from collections.abc import Sequence
from typing import Any

from curator.errors import ModelError, RecipeError, raised_as
from curator.family import Array, Family, Place, Scope
from curator.models.saved_text_model import TEXT, Dtype, SavedTextModel, text_vectors_facts
from curator.models.saved_weights import settings_sha256
from curator.models.text_encoder import (
    TextEncoder,
    TokenEncoder,
    check_transformers,
    text_hash,
)
from curator.stage import (
    WORKER_BYTES,
    Annotator,
    ClipFacts,
    Resources,
    SampledClip,
    StageConfig,
    setting,
)

__all__ = ("TextVectors", "TextVectorsConfig", "text_vectors_facts")


class TextVectorsConfig(StageConfig):
    """Settings of the vectors of texts."""

    model: str = setting(unit="folder, or owner/name")
    """folder of a model as transformers writes it, with `tokenizer.json`, or with the folders
    `text_encoder` and `tokenizer`; or a repository of the hub that is in the local cache"""
    column: str = setting("caption", unit="column of clips")
    """column with the texts, such as caption, short_caption or meta.prompt"""
    max_tokens: int = setting(512, unit="tokens", ge=2)
    """most tokens that are read, with those of the template; longer texts are truncated"""
    template: str = setting(TEXT, unit="text")
    """what the model reads, with {text} in place of the text"""
    skip: int = setting(0, unit="tokens", ge=0)
    """number of first tokens whose vectors are left out, such as those of the template"""
    layer: int = setting(-1, unit="layer", le=-1)
    """layer whose output is stored: -1 for the model's output, -2 for the layer before it"""
    dtype: Dtype = setting("bf16", unit="bf16, f16 or f32")
    """type of the stored numbers; those of some encoders do not fit into f16"""
    compute: Dtype = setting("bf16", unit="bf16, f16 or f32")
    """type of weights and arithmetic; T5 overflows in f16"""
    place: Place = setting(Place.SHARED, unit="sample, side or shared")
    """in the samples; in tars of their own; or there, with equal texts of a tar stored once"""


class TextVectors(Annotator[TextVectorsConfig]):
    """Encodes a text of each clip; a value is [tokens, D]."""

    name = "text_vectors"
    version = 1
    config_type = TextVectorsConfig
    # The hashes of weights and tokenizer are among the facts.
    results_ignore = frozenset({"model", "place"})
    frames = ()
    # Large enough for texts of similar length; progress and storing wait for the end of a call.
    batch = 64

    def __init__(self, config: TextVectorsConfig) -> None:
        super().__init__(config)
        if TEXT not in config.template:
            raise RecipeError(
                f"stages: 'text_vectors': template {config.template!r}; expected a text with {TEXT}"
            )
        if config.skip >= config.max_tokens:
            raise RecipeError(
                f"stages: 'text_vectors': skip {config.skip} of max_tokens {config.max_tokens}; "
                "expected fewer"
            )
        with raised_as(RecipeError, ModelError, of="stages: 'text_vectors': "):
            saved = SavedTextModel.find(config.model)
        self.columns = (config.column,)
        self._encoder: TextEncoder | None = None
        self._settings_sha256 = settings_sha256(saved.config)
        memory_bytes = WORKER_BYTES + 2 * saved.weights.n_bytes
        self.kinds = (
            Resources(gpus=1, memory_bytes=memory_bytes), Resources(memory_bytes=memory_bytes),
        )  # fmt: skip
        facts = saved.facts(
            column=config.column, max_tokens=config.max_tokens, template=config.template,
            skip=config.skip, layer=config.layer, dtype=config.dtype,
        )  # fmt: skip
        self.families = (
            Family(
                "text_vectors",
                Scope.CLIP,
                Array(config.dtype, ("tokens", saved.dim)),
                member="text_vectors.safetensors",
                place=config.place,
                facts=facts,
            ),
        )

    def models(self) -> tuple[object, ...]:
        """Returns the digest of the model's configuration; the facts have that of its weights."""
        return (self._settings_sha256,)

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns the hash of the text, so that clips with one text share its value."""
        text = facts.columns[self.config.column]
        return text_hash(text) if text and text.strip() else None

    def preflight(self) -> None:
        """Raises `ModelError` if transformers is missing."""
        check_transformers()

    def setup(self) -> None:
        """Loads the model.

        Raises:
            ModelError: This machine has another model than the one that planned the run.
        """
        config = self.config
        saved = SavedTextModel.find(config.model)
        facts = self.families[0].facts
        for name, found in (
            ("weights", saved.weights.sha256()), ("tokenizer", saved.tokenizer_sha256),
        ):  # fmt: skip
            if found != facts[name]:
                raise ModelError(
                    f"model {config.model!r}: the {name} of {saved.folder} have the SHA-256 "
                    f"{found[:12]}…; expected {str(facts[name])[:12]}…, which the run was planned "
                    "with"
                )
        precision = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[config.compute]
        encoder = TokenEncoder(
            name=config.model, max_tokens=config.max_tokens, dim=saved.dim,
            tokenizer=saved.tokenizer, dtype=config.dtype, layer=config.layer, skipped=config.skip,
        )  # fmt: skip
        self._encoder = TextEncoder(encoder, saved.folder, precision=precision)  # type: ignore[arg-type]

    def process(self, unit: Sequence[SampledClip]) -> list[Any]:
        """Returns the vectors of each text."""
        assert self._encoder is not None
        column, template = self.config.column, self.config.template
        texts = [template.replace(TEXT, clip.facts.columns[column]) for clip in unit]
        made: dict[int, Any] = dict(self._encoder.each(texts))
        return [made[number] for number in range(len(texts))]
