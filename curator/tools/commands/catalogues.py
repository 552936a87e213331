"""`curate recipes`, `graph`, `scores`, `doctor` and `models`: catalogues and checks."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from curator.errors import ModelError, UsageError, raised_as
from curator.tools.commands.arguments import (
    EXIT_BROKEN_OFF,
    EXIT_OK,
    EXIT_USAGE,
    JSON,
    Result,
    always,
    command,
    option,
    overrides,
    ray_address,
)

if TYPE_CHECKING:
    from curator.models.catalogue import ModelEntry
    from curator.models.weight_store import ModelStore
    from curator.recipe import Recipe


def _recipe_named(name: str, overrides: Sequence[str] = ()) -> "tuple[str, Recipe]":
    """Returns a description of a recipe, and the recipe of a name, a YAML file or an output."""
    from curator.recipe import load_recipe, recipe_used, with_changes
    from curator.storage.base import has_scheme

    if not has_scheme(name) and not os.path.isdir(name):
        return f"recipe {name}", load_recipe(name, overrides)
    from curator.storage import open_store
    from curator.tables.output_format import read_current_summary
    from curator.tables.snapshot_store import CREATED_AT, NUMBER

    store = open_store(name)
    summary = read_current_summary(store)
    words = f"recipe of {store.uri}, snapshot {summary[NUMBER]} of {summary[CREATED_AT]}"
    return words, with_changes(recipe_used(summary, store.uri), overrides)


@command(
    "list the recipes, or print one with the meaning of each key",
    option("[NAME]", "recipe to print, resolved: a name, a YAML file, or OUT of a run"),
    overrides(),
    only_prints=always,
)
def recipes(options: argparse.Namespace) -> Result:
    from curator.recipe import describe, load_recipe, recipe_names

    if options.name is None:
        about = {name: load_recipe(name).about.strip() for name in recipe_names()}
        for name, words in about.items():
            print(f"{name}: {words}")
        return Result([{"name": name, "about": words} for name, words in about.items()])
    words, recipe = _recipe_named(options.name, options.overrides)
    print(f"# {words}")
    keys = list(describe(recipe))
    for key, value, unit, why in keys:
        print(f"{key} = {value}" + (f"  [{unit}]" if unit else ""))
        if why:
            print(f"    {why}")
    names = ("key", "value", "unit", "meaning")
    settings = recipe.model_dump(mode="json")
    listed = [dict(zip(names, row, strict=True)) for row in keys]
    return Result({"recipe": words, "settings": settings, "keys": listed})


@command(
    "print the stages of a recipe, and what each of them waits for",
    option(
        "[RECIPE]",
        "name from `curate recipes`, a YAML file, or OUT of a run (default: %(default)s)",
        default="quickstart",
    ),
    overrides(),
    option(
        "--format",
        "text tables or a Mermaid diagram (default: %(default)s)",
        choices=("text", "mermaid"),
        default="text",
    ),
    description="Prints the graph that `curate run` follows with a recipe. Reads only the recipe; "
    "writes nothing.",
    only_prints=always,
)
def graph(options: argparse.Namespace) -> Result:
    from curator.pipeline import graph_of

    with raised_as(UsageError, ModelError):
        stages = graph_of(_recipe_named(options.recipe, options.overrides)[1])
    print(stages.mermaid() if options.format == "mermaid" else stages.text())
    return Result(stages.facts())


@command(
    "define each score of a clip",
    option("[SCORE]", "name of a score (default: all)", dest="name"),
    option(
        "--recipe NAME|FILE|OUT",
        "recipe that measures and aggregates the scores: a name, a YAML file, or OUT of a run "
        "(default: the built-in scores)",
    ),
    option("--markdown", "print all scores as a Markdown table"),
    only_prints=always,
)
def scores(options: argparse.Namespace) -> Result:
    from curator.measures.score_list import BUILT_IN

    measures, aggregates = BUILT_IN, {}
    if options.recipe is not None:
        from curator.recipe import measures_of

        words, recipe = _recipe_named(options.recipe)
        print(f"as measured by the {words}", file=sys.stderr if options.markdown else sys.stdout)
        measures, aggregates = measures_of(recipe), recipe.scores.root
    if options.markdown:
        print(measures.markdown(aggregates), end="")
    else:
        print(*measures.text(options.name, aggregates), sep="\n")
    return Result(list(measures.facts(options.name, aggregates)))


@command(
    "check whether a recipe can run on this machine, and print remedies",
    option(
        "[PLACE...]",
        "SOURCE... OUT as for `curate run`; the last place is OUT, also if it is the only place "
        "(default: check no storage)",
        dest="places",
    ),
    option("--recipe RECIPE", "the recipe to check (default: %(default)s)", default="quickstart"),
    overrides(),
    option("--models PLACE", "models folder, or s3://bucket/prefix (default: the recipe's)"),
    ray_address("also check that this Ray cluster answers (default: $RAY_ADDRESS, else none)"),
    description="Checks the machine, packages, GPU, models, storage and the recipe, and prints a "
    "remedy for each problem. Removes the objects with which it tests OUT.",
    epilog="Exit codes: 0 the recipe can run here; 2 a requirement is missing or broken.",
)
def doctor(options: argparse.Namespace) -> Result:
    """Returns 0 if the recipe can run here, else the exit code of `curate run`."""
    from curator.tools.doctor.examination import examine

    *sources, out = options.places or [None]
    diagnosis = examine(
        sources,
        out,
        recipe=options.recipe,
        overrides=options.overrides,
        models=options.models,
        ray_address=options.ray_address,
    )
    diagnosis.print()
    return Result(diagnosis.facts(), EXIT_OK if diagnosis.can_run else EXIT_USAGE)


_TASKS = {
    "list": ("[NAME...]", "list models, their sources, and the local state of each"),
    "pull": ("NAME...", "fetch models from a mirror or the hub, and verify them"),
    "verify": (
        "[NAME...]",
        "hash local files (default: of all models), and compare with the catalogue",
    ),
}


def _add_tasks(parser: "argparse._ActionsContainer") -> None:
    assert isinstance(parser, argparse.ArgumentParser)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for task, (names, help) in _TASKS.items():
        own = tasks.add_parser(task, help=help)
        option(names, "model of the catalogue", dest="names")(own)
        option(
            "--models PLACE",
            "models folder, or s3://bucket/prefix (default: $CURATE_MODELS, else a folder "
            "`curate/models` in the user's cache)",
        )(own)
        if task == "pull":
            option(
                "--from PLACE",
                "folder or s3://bucket/prefix with NAME/FILE or FILE (default: the source that the "
                "catalogue names)",
                dest="source",
            )(own)
        JSON(own)


@command(
    "list, fetch and verify model weights",
    _add_tasks,
    description="Lists, fetches and verifies the weights of the models that recipes can name. "
    "`verify` exits with 1 if a file differs from the catalogue.",
    has_json=False,
    only_prints=lambda options: options.task == "list",
)
def models(options: argparse.Namespace) -> Result:
    """Runs `list`, `pull` or `verify`; returns 1 if a verified model differs from the catalogue."""
    from curator.models.weight_store import ModelStore

    with raised_as(UsageError, ModelError):
        store = ModelStore.at(options.models)
        entries = [store.catalogue.find(name) for name in options.names]
        match options.task:
            case "list":
                every = entries or list(store.catalogue.entries.values())
                print(*_listing(store, every), sep="\n")
                facts = [_model_facts(store, entry, store.quick_state(entry)) for entry in every]
                return Result(facts)
            case "pull":
                for entry in entries:
                    pulled = store.pull(entry, options.source)
                    print(f"{entry.name}: {pulled}, verified", flush=True)
                    _hint(store, entry)
                return Result([_model_facts(store, entry, "verified") for entry in entries])
            case _:
                return _verify(store, entries)


def _listing(store: "ModelStore", entries: "Sequence[ModelEntry]") -> Iterator[str]:
    """Yields lines with kind, size, local state, licence and source of models."""
    yield f"models folder: {store.folder}" + (f", from {store.mirror}" if store.mirror else "")
    for entry in entries:
        n_bytes = entry.total_bytes
        size = f"{n_bytes / 1e6:.1f} MB" if n_bytes is not None else "size unknown"
        yield f"{entry.name}  [{entry.kind}, {size}, {store.quick_state(entry)}]"
        yield f"    {entry.about}" + (f"; reads {entry.reads}" if entry.reads else "")
        yield f"    {entry.source}; {entry.licence}"
        for part in entry.parts:
            name = f"{part.file}: " if entry.also else ""
            yield f"    {name}sha256 {part.sha256 or 'unknown: recorded at the first pull'}"


def _hint(store: "ModelStore", entry: "ModelEntry") -> None:
    if entry.reads is not None:
        clip = store.catalogue.find(entry.reads, "clip")
        if store.quick_state(clip) == "missing":
            print(f"it reads embeddings of {clip.name}: `curate models pull {clip.name}`")


def _model_facts(store: "ModelStore", entry: "ModelEntry", state: str) -> dict[str, object]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "state": state,
        "path": str(store.path(entry)),
        "bytes": entry.total_bytes,
        "about": entry.about,
        "reads": entry.reads,
        "source": entry.source,
        "licence": entry.licence,
        "files": [{"file": part.file, "sha256": part.sha256} for part in entry.parts],
    }


def _verify(store: "ModelStore", entries: "Sequence[ModelEntry]") -> Result:
    """Hashes the named models, or all local ones, and prints the state of each."""
    wrong, facts = 0, []
    for entry in entries or list(store.catalogue.entries.values()):
        state = store.state(entry, again=True)
        wrong += state == "differs" or (state == "missing" and bool(entries))
        if state != "missing" or entries:
            print(f"{entry.name}: {state} ({store.path(entry)})")
            facts.append(_model_facts(store, entry, state))
    return Result(facts, EXIT_BROKEN_OFF if wrong else EXIT_OK)
