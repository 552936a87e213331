"""Vectors of captions by their meaning, which are computed once for each text on a machine.

Shape letters: T texts, D dimensions.
"""
# ruff: noqa: N803, N806 - shape letters

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.fingerprints import fingerprint
from curator.models.text_encoder import TextEncoder, check_transformers, text_hash
from curator.models.weight_store import ModelStore

logger = logging.getLogger(__name__)

ENCODER = "all-minilm-l6-v2"
_BLOCK = 4096
"""Captions after which the vectors so far are stored."""
_SAID = 1000
"""New captions from which on the log says that they take a while."""


class CaptionVectors:
    """Vectors of captions of one output, by the sentence encoder MiniLM.

    Vectors of earlier calls are stored in the models folder, without the texts; a call removes
    those of captions that it does not name.

    Args:
        models: Place of the weights.
        uri: Address of the output.

    Raises:
        ModelError: The weights or transformers are missing.
    """

    def __init__(self, models: ModelStore, uri: str) -> None:
        entry = models.catalogue.find(ENCODER, "text")
        check_transformers()
        self._models, self._entry = models, entry
        self._folder = models.find(entry).parent
        self._key = fingerprint("caption vectors", models.fingerprint(entry), uri)
        self._encoder: TextEncoder | None = None

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns vectors of unit length of texts that are not blank, float32 [T, D]."""
        if self._encoder is None:
            self._encoder = TextEncoder(self._entry, self._folder)
        vectors_TD = np.zeros((len(texts), int(self._entry.dim or 0)), np.float32)
        for number, vector in self._encoder.each(texts):
            vectors_TD[number] = vector
        return vectors_TD

    def of_captions(self, captions: Sequence[str]) -> NDArray[np.float16]:
        """Returns the vectors of distinct captions, float16 [T, D]; computes only new ones."""
        hashes = np.array([text_hash(caption) for caption in captions], "S32")
        vectors_TD = np.zeros((len(captions), int(self._entry.dim or 0)), np.float16)
        is_known = np.zeros(len(captions), np.bool_)
        if (stored := self._models.load_derived(self._key)) is not None:
            place = {digest: number for number, digest in enumerate(stored["hashes"].tolist())}
            at = np.array([place.get(digest, -1) for digest in hashes.tolist()], np.int64)
            is_known = at >= 0
            vectors_TD[is_known] = stored["vectors"][at[is_known]]
            if is_known.all() and len(stored["hashes"]) > len(captions):
                self._keep(hashes, vectors_TD)
        new = np.flatnonzero(~is_known)
        if len(new) >= _SAID:
            logger.warning(
                "computing vectors of %s captions; later searches of this output reuse them",
                f"{len(new):,}",
            )
        for begin in range(0, len(new), _BLOCK):
            numbers = new[begin : begin + _BLOCK]
            vectors_TD[numbers] = self.of([captions[number] for number in numbers])
            is_known[numbers] = True
            self._keep(hashes[is_known], vectors_TD[is_known])
        return vectors_TD

    def _keep(self, hashes: NDArray[np.bytes_], vectors_TD: NDArray[np.float16]) -> None:
        self._models.keep_derived(self._key, {"hashes": hashes, "vectors": vectors_TD})


def caption_vectors(models: ModelStore, uri: str) -> CaptionVectors | None:
    """Returns the vectors of captions of an output; None without the weights or transformers.

    Weights that differ from the catalogue's are logged, because they are installed.
    """
    try:
        return CaptionVectors(models, uri)
    except ModelError as error:
        if models.state(models.catalogue.find(ENCODER, "text")) == "differs":
            logger.warning("captions are compared by words only: %s", error)
        return None
