"""`curate fit`: what trainers do with the clips of OUT."""

import argparse
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from curator.errors import RecipeError, UsageError, ambiguous_id, raised_as, unknown_key
from curator.number_text import amount
from curator.tools.commands.arguments import SNAPSHOT, Result, always, command, option

if TYPE_CHECKING:
    import pyarrow as pa

    from curator.trainers.trainer_files import Trainer

_OF_VAL = "(^|/)val-[^/]*$"
"""Matches the names of tars of the split `val`."""


@command(
    "say what trainers do with the clips: drop, cut off, retime, crop",
    option("[OUT]", "folder or s3://bucket/prefix of a run"),
    option(
        "--for TRAINER",
        "name of a trainer, which --list shows, or the path of a trainer's file of your own; may "
        "be repeated, for a table with a column each (default: those in train_for of OUT's "
        "recipe names, with its parameters)",
        action="append",
        default=[],
        dest="trainers",
    ),
    option(
        "--set PARAMETER=VALUE",
        "value of a parameter, such as frames=49 for all trainers that have it, or ltx2.frames=97 "
        "for one (default: that of the recipe's train_for, else the trainer's own)",
        action="append",
        default=[],
        dest="values",
    ),
    option("--where SQL", "only clips that meet a condition, as in WHERE; needs DuckDB"),
    option("--split", "only this split (default: both)", choices=("train", "val")),
    option(
        "--explain CLIP",
        "all that the trainers do with one clip, with remedies: its id or key, or an unambiguous "
        "beginning",
    ),
    option(
        "--solve",
        "find the recipe under which the trainers see most of the footage of OUT, and print it "
        "with the shares that they see now and then",
    ),
    option(
        "--size SIZE",
        "with --solve: width and height of all clips, such as 832x480 (default: the recipe's size)",
    ),
    option("--list", "list the trainers with their parameters and defaults"),
    SNAPSHOT,
    description="Applies the rules of trainers, which were read from their code, to the numbers of "
    "the kept clips: frames, rate, size, sound, caption. Reads tables only, and decodes nothing.",
    only_prints=always,
)
def fit(options: argparse.Namespace) -> Result:
    from curator.trainers.clip_fit import fit_windows
    from curator.trainers.fit_words import table_lines, warning_lines

    if options.list:
        return _listed()
    if options.out is None:
        raise UsageError(
            "curate fit needs OUT, such as `curate fit out --for wan-diffsynth`; --list shows the "
            "trainers"
        )
    trainers = _trainers(_named(options), options.values)
    if options.solve:
        from curator.tools.commands.fit_solving import solve

        return solve(options, trainers)
    if options.size is not None:
        raise UsageError("--size needs --solve; for a trainer's own size, use --set width=WIDTH")
    clips = _clips(options)
    if options.explain is not None:
        return _explained(trainers, clips, options.explain)
    fits = [fit_windows(trainer, [clips]) for trainer in trainers]
    print(f"{options.out}: {_kept_words(clips)}")
    print(*table_lines(fits), sep="\n")
    for facts in fits:
        for warning in warning_lines(facts, None):
            print(warning)
    return Result(fits)


def _kept_words(clips: "pa.Table") -> str:
    import pyarrow.compute as pc

    n_val = pc.sum(pc.match_substring_regex(clips["shard"], _OF_VAL)).as_py()
    seconds = pc.sum(pc.subtract(clips["end_s"], clips["start_s"])).as_py()
    return (
        f"{amount(clips.num_rows, 'kept clip')} ({clips.num_rows - n_val} train, {n_val} val), "
        f"{seconds:.1f} s"
    )


def _named(options: argparse.Namespace) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the trainers to apply; those that the recipe of OUT names have its parameters."""
    of_recipe: list[tuple[str, Mapping[str, Any]]] = []
    # A recipe that this version cannot read does not matter to trainers that are named.
    with suppress(UsageError) if options.trainers else nullcontext():
        of_recipe = _named_by_recipe(options)
    named: list[tuple[str, Mapping[str, Any]]] = []
    for name in dict.fromkeys(options.trainers):
        named += [entry for entry in of_recipe if entry[0] == name] or [(name, {})]
    if not (named or of_recipe):
        raise UsageError(
            f"{options.out} has no recipe that names trainers in train_for; give --for TRAINER, "
            f"such as `curate fit {shlex.quote(options.out)} --for wan-diffsynth`; `curate fit "
            "--list` shows the trainers"
        )
    return named or of_recipe


def _named_by_recipe(options: argparse.Namespace) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the trainers that the recipe of OUT names, with their parameters."""
    from curator.recipe import recipe_used
    from curator.storage import open_store
    from curator.tables.snapshot_store import find_summary, read_snapshot

    store, number = open_store(options.out), options.snapshot
    summary = find_summary(store) if number is None else read_snapshot(store, number)
    entries = recipe_used(summary, store.uri).train_for if summary else ()
    return [(entry.trainer, entry.model_extra or {}) for entry in entries]


def _trainers(
    named: Sequence[tuple[str, Mapping[str, Any]]], settings: Sequence[str]
) -> "list[Trainer]":
    from curator.strict_yaml import StrictYamlError, load_yaml
    from curator.trainers.trainer_files import load_trainer

    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting!r}; expected PARAMETER=VALUE such as frames=49")
        with raised_as(UsageError, StrictYamlError, of=f"--set {setting}: "):
            values[key] = load_yaml(text)
    with raised_as(UsageError, RecipeError):
        plain = [load_trainer(name, own) for name, own in named]
        known = {key for trainer in plain for key in trainer.values}
        known |= {f"{trainer.name}.{key}" for trainer in plain for key in trainer.values}
        for key in values:
            if key not in known:
                raise RecipeError(f"--set {key}: {unknown_key(key, sorted(known), 'parameter')}")
        return [
            load_trainer(name, {**own, **_values_of(one, values)})
            for one, (name, own) in zip(plain, named, strict=True)
        ]


def _values_of(trainer: "Trainer", values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a trainer's parameters; `ltx2.frames` is of this trainer alone."""
    return {
        key: values[name]
        for key in trainer.values
        for name in (key, f"{trainer.name}.{key}")
        if name in values
    }


def _clips(options: argparse.Namespace) -> "pa.Table":
    import pyarrow.compute as pc

    from curator.storage import open_store
    from curator.tables.kept_clips import selected_clips

    clips = selected_clips(open_store(options.out), options.where, snapshot=options.snapshot)
    if options.split is not None:
        is_val = pc.match_substring_regex(clips["shard"], _OF_VAL)
        clips = clips.filter(is_val if options.split == "val" else pc.invert(is_val))
    if not clips.num_rows:
        narrowed = options.where is not None or options.split is not None
        why = "no kept clip meets --where and --split" if narrowed else "no clip is kept"
        raise UsageError(f"{options.out}: {why}")
    return clips


def _explained(trainers: "Sequence[Trainer]", clips: "pa.Table", named: str) -> Result:
    from curator.trainers.clip_fit import COLUMNS, caption_of, fit_form, forms_of
    from curator.trainers.fit_words import clip_lines

    at = _place_of(clips, named)
    row = clips.slice(at, 1)
    form, _, caption = next(iter(forms_of(row)))
    facts, lines = [], []
    for trainer in trainers:
        fitted = fit_form(trainer, form)
        used = caption_of(trainer, fitted, form, caption)
        lines += list(clip_lines(trainer, form, fitted, used))
        indices = [] if fitted.reason else [one.tolist() for one in fitted.reading.indices()]
        facts.append(
            {
                "trainer": trainer.name,
                "parameters": trainer.values,
                "reason": fitted.reason,
                "frames": indices,
                "times_s": [[round(i / float(form.fps), 6) for i in one] for one in indices],
                "is_drawn": fitted.reading.is_drawn,
                "seen_share": fitted.seen_share,
                "readable_share": fitted.readable_share,
                "speed": fitted.speed,
                "picture": None if fitted.picture is None else asdict(fitted.picture),
                "caption": {**asdict(used), "cut": used.cut},
                "sound": fitted.sound,
            }
        )
    values = {name: row[name][0].as_py() for name in ("clip_id", "key", *COLUMNS)}
    print(
        f"clip {values['clip_id']}: {amount(form.n_frames, 'frame')} at {form.fps} frames/s, "
        f"{form.width}x{form.height}, {'with' if form.has_sound else 'without'} sound"
    )
    print(*lines, sep="\n")
    return Result({"clip": values, "fits": facts, "text": "\n".join(lines)})


def _place_of(clips: "pa.Table", named: str) -> int:
    """Returns the row of a clip by its id or key, or an unambiguous beginning of one."""
    names = list(zip(clips["clip_id"].to_pylist(), clips["key"].to_pylist(), strict=True))
    exact = [at for at, both in enumerate(names) if named in both]
    found = exact or [
        at for at, both in enumerate(names) if named and any(str(n).startswith(named) for n in both)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(ambiguous_id(named, [names[at][0] for at in found]))
    raise UsageError(
        f"--explain {named}: no kept clip has this id or key; `curate explain OUT {named}` says "
        "why if the run rejected it, and `curate explain OUT` lists the clips"
    )


def _listed() -> Result:
    from curator.trainers.trainer_files import load_trainer, trainer_names

    facts: list[Mapping[str, Any]] = []
    for name in trainer_names():
        trainer = load_trainer(name)
        rules = trainer.rules
        print(f"{name}: {rules.about} ({rules.project} {rules.version})")
        print(*_listed_lines(trainer), sep="\n")
        facts.append(
            {
                "name": name, "about": rules.about, "project": rules.project,
                "version": rules.version, "layout": rules.layout, "command": rules.command,
                "read": dict(rules.read), "notes": rules.notes, "parameters": trainer.values,
            }
        )  # fmt: skip
    return Result(facts)


def _listed_lines(trainer: "Trainer") -> Iterator[str]:
    rules = trainer.rules
    values = ", ".join(trainer.defaults)
    texts = [f"reads: {rules.layout}", f"parameters: {values}" if values else "", rules.notes]
    for text in filter(None, texts):
        yield from textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
