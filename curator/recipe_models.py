"""The models that a recipe names: heads over CLIP embeddings, and the model of `curate learn`."""

import logging

from curator.errors import UsageError
from curator.measures.clip_models import Semantics
from curator.measures.learned_score import LearnedScore
from curator.models.weight_store import ModelStore
from curator.recipe import Recipe, stored_measures_of
from curator.tables.out_layout import LEARNED_MODEL, copy_name

logger = logging.getLogger(__name__)


def learned_score_of(recipe: Recipe) -> LearnedScore | None:
    """Reads the recipe's model of `curate learn`; None if the recipe has no such model.

    Raises `UsageError` if the model cannot be read, or needs scores that the recipe lacks.
    """
    address = recipe.suitability.model
    if address is None:
        return None
    learned = _read_learned(address)
    absent = [name for name in learned.scores if name not in stored_measures_of(recipe).specs]
    if absent:
        raise UsageError(
            f"suitability.model uses the score {absent[0]!r}, which this recipe does not have; "
            "add the measure that gives this score to `measures`"
        )
    if learned.directions and not recipe.analyze.scenes:
        raise UsageError(
            "suitability.model uses picture vectors, and analyze.scenes is false; set "
            "analyze.scenes to true"
        )
    return learned


def _read_learned(address: str) -> LearnedScore:
    """Reads a model, or its copy in the same output if the model is damaged."""
    try:
        return LearnedScore.read(address)
    except UsageError as error:
        root = address.removesuffix(LEARNED_MODEL)
        if root == address:
            raise
        try:
            learned = LearnedScore.read(f"{root}{copy_name(LEARNED_MODEL)}")
        except UsageError:
            # The copy's error would name an object that the user does not know.
            raise error from None
        logger.warning("%s; its copy is read", error)
        return learned


def semantics_of(recipe: Recipe) -> Semantics:
    """Returns the models that a recipe names; raises `ModelError` for an unknown name."""
    return Semantics(recipe.semantic, recipe.analyze.clip, ModelStore.at(recipe.models))
