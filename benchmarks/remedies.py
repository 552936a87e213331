"""Tries every remedy that `curate explain` prints, and the counts that `curate tune` predicts.

Copies the state of a finished run, applies the options of each rejected clip, and repeats the run
up to the cut: stored candidates are read, or proposed again from stored tracks, and the stages
decide. Nothing is decoded. Marks are set by `curate mark` in the copy.

    python benchmarks/remedies.py OUT SOURCE...
"""

import io
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pyarrow as pa
from measure import arguments, tell

from curator.cli import main as curate
from curator.errors import UsageError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.recipe import with_changes
from curator.runs.curation import Run
from curator.runs.one_pass import GenerationRun
from curator.storage import open_store
from curator.tools.review.bound_tuning import full_key, tune
from curator.tools.review.changed_decisions import NOT_PROPOSED, after_selection, first_reasons
from curator.tools.review.clip_explanation import explain
from curator.tools.review.finished_run import Finished, open_finished

TUNED: tuple[list[str], ...] = (
    [], ["filters.motion.min=0.02"], ["filters.motion.min=0", "dedup.min_share=0.6"],
    ["filters.sharpness.drop_lowest=0.2"], ["select.max_per_group=5"],
    ["filters.short_side_px.min=0"], ["dedup.remainders=false"], ["cut.hdr=reject"],
)  # fmt: skip
"""Changes whose effects `curate tune` predicts, besides the remedies."""
KEPT = ("It would be kept", "or by:", "or with all of this:")


class Decided(Exception):  # noqa: N818 - ends a run, and is no error
    """Carries the clips of a run that ends before the cut."""

    def __init__(self, clips: pa.Table) -> None:
        self.clips = clips


def decided(self: GenerationRun, *_: object) -> None:
    """Takes the place of the stages after the decisions."""
    self._cutting.refuse_hdr(self._corpus.rows)
    raise Decided(pa.concat_tables(self._corpus.clips.blocks(("clip_id", "decision", "reason"))))


def rerun(out: Path, sources: Sequence[str], changes: Sequence[str]) -> dict[str, str | None]:
    """Returns the first reason against each clip of a run with changes; None for a kept clip."""
    recipe = with_changes(open_finished(str(out)).recipe, changes)
    with Engine(address=None, workers=1) as engine:
        run = Run(open_store(str(out)), recipe, engine, Progress())
        try:
            run.execute(sources, limit=None)
        except Decided as done:
            ids = done.clips["clip_id"].to_pylist()
            return dict(zip(ids, first_reasons(done.clips), strict=True))
    raise AssertionError("the run has no decisions")


def remedies(text: str) -> Iterator[list[str]]:
    """Yields the remedies in an explanation that keep the clip: a list of options each."""
    options: list[str] | None = None
    for line in text.splitlines():
        if line.startswith(KEPT):
            if options is not None:
                yield options
            options = []
        elif line.startswith("  ") and options is not None:
            options.append(line.strip())
        elif options is not None:
            yield options
            options = None
    if options is not None:
        yield options


def tunable(changes: Sequence[str]) -> bool:
    """Returns whether `curate tune` takes the changes, and says that it knows all outcomes."""
    try:
        for change in changes:
            full_key(change)
    except UsageError:
        return False
    return not any(change.startswith("propose.") for change in changes)


def wrong_predictions(
    finished: Finished, changes: Sequence[str], fates: Mapping[str, str | None]
) -> tuple[int, int]:
    """Returns the number of clips that `curate tune` predicts wrongly, and of clips not counted."""
    tuned = tune(finished, changes)
    ids = finished.clips["clip_id"].to_pylist()
    late = after_selection(finished)
    twice = {name for name, n in Counter(ids).items() if n > 1}
    pairs = [
        # This run ends before the stages that rejected `late` clips.
        (None if late[n] and then == tuned.now[n] else then, fates.get(clip_id, NOT_PROPOSED))
        for n, (clip_id, then) in enumerate(zip(ids, tuned.then, strict=True))
        if clip_id not in twice  # a remainder may have the id of its clip
    ]
    wrong = sum(then != fate for then, fate in pairs)
    return wrong, len(fates.keys() - set(ids))


def main() -> int:
    """Prints a line for each false promise, counts, and the results as JSON."""
    parser = arguments(__doc__)
    parser.add_argument("out")
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--every", type=int, default=1, help="try only each nth rejected clip")
    options = parser.parse_args()
    GenerationRun._write = decided  # type: ignore[method-assign]
    false: list[str] = []
    n: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "out"
        shutil.copytree(options.out, copy, ignore=shutil.ignore_patterns("shards", "report"))
        finished = open_finished(str(copy))
        candidates = finished.candidates()

        @cache
        def outcomes(changes: tuple[str, ...]) -> dict[str, str | None]:
            return rerun(copy, options.sources, changes)

        tried: set[tuple[str, ...]] = set()
        same = outcomes(())
        now = dict(zip(finished.clips["clip_id"].to_pylist(), first_reasons(finished.clips),
                       strict=True))  # fmt: skip
        assert same.keys() == now.keys(), "the run without changes makes other clips"
        for clip_id, reason in now.items():
            if reason is None:
                continue
            n["rejected clips"] += 1
            if n["rejected clips"] % options.every:
                continue
            n["explained clips"] += 1
            text = explain(finished, clip_id, candidates)
            found = list(remedies(text))
            n["without a remedy"] += not found
            if not found:
                print(clip_id, reason, text.rpartition("\n\n")[2].replace("\n", " "))
            for lines in found:
                n["remedies"] += 1
                changes = [words[1] for words in map(shlex.split, lines) if words[0] == "--set"]
                marks = [words for words in map(shlex.split, lines) if words[0] == "curate"]
                if marks:
                    with redirect_stdout(io.StringIO()):
                        curate(["mark", str(copy), *marks[0][3:]])
                    fates = rerun(copy, options.sources, changes)
                    with redirect_stdout(io.StringIO()):
                        curate(["mark", str(copy), clip_id, "--clear"])
                else:
                    tried.add(tuple(changes))
                    fates = outcomes(tuple(changes))
                fate = fates.get(clip_id, "is no clip then")
                if fate is not None:
                    false.append(f"{clip_id} {reason}: with {' '.join(lines)}: {fate}")
                    print(false[-1], flush=True)
        for tuned in filter(tunable, sorted({*tried, *map(tuple, TUNED)})):
            wrong, n_new = wrong_predictions(finished, tuned, outcomes(tuned))
            n["tuned"] += 1
            n["clips predicted wrongly"] += wrong
            n["clips that only a run makes"] += n_new
            if wrong:
                print("tune", *tuned, f"{wrong} clips predicted wrongly", flush=True)
    n["false promises"] = len(false)
    for name, number in n.items():
        print(f"{name:<28}{number:>8}")
    tell(dict(n))
    return 0


if __name__ == "__main__":
    sys.exit(main())
