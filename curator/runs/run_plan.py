"""The plan of a run: where it is kept, and what a run takes of it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from curator.executor.progress import Expected
from curator.fingerprints import fingerprint
from curator.recipe import Recipe
from curator.storage import Store
from curator.tables.out_layout import PLAN

FORMAT = 1


def write_plan(store: Store, plan: Mapping[str, Any], recipe: Recipe) -> None:
    """Writes `plan.json`, of a run by a recipe."""
    plan = {**plan, "recipe": fingerprint(recipe.model_dump(mode="json"))}
    store.write(PLAN, json.dumps(plan, indent=1).encode() + b"\n")


def read_plan(store: Store, recipe: Recipe) -> dict[str, Any]:
    """Reads the plan of a recipe; empty if OUT has no plan, or the plan of another recipe."""
    found, plan = store.read_versioned(PLAN), {}
    with suppress(ValueError, TypeError):
        plan = dict(json.loads(found[1])) if found is not None else {}
    is_own = plan.get("recipe") == fingerprint(recipe.model_dump(mode="json"))
    return plan if is_own and plan.get("format") == FORMAT else {}


def expected_of(plan: Mapping[str, Any], previous: Mapping[str, Any]) -> Expected:
    """Returns what stages are expected to take: by the plan, the last run, or the defaults."""
    if plan and not previous:
        return Expected(seconds=plan["stage_s"], is_planned=True)
    if previous.get("work", {}).get("sources_analyzed"):
        return Expected(seconds=previous["stage_seconds"])
    return Expected()
