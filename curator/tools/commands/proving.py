"""`curate prove`: does a rule improve what a tokenizer learns?"""

import argparse
import sys
from dataclasses import asdict

from curator.tools.commands.arguments import (
    OUT,
    SNAPSHOT,
    Result,
    command,
    option,
    positive,
)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 1440:
        raise argparse.ArgumentTypeError(f"{text!r}; expected minutes above 0, at most 1440")
    return minutes


@command(
    "test by training whether a rule helps",
    OUT,
    option(
        "--rule RULE",
        "rule of `filters`, such as sharpness; a reason, such as noise_too_high or duplicate; or a "
        "condition in SQL that clips must meet, such as 'sharpness >= 0.2'",
        required=True,
    ),
    option("--clips N", "most kept clips, and most rejected clips (default: 100)", positive),
    option(
        "--controls N",
        "random rules of the same form, which say how far chance goes (default: 40, at least 12)",
        positive,
    ),
    option("--quick", "40 clips of either kind and 20 random rules, unless set otherwise"),
    option("--minutes M", "time limit (default: 15)", _minutes, default=15.0),
    option(
        "--seed N",
        "seed of the choice of clips and of the random rules (default: 0)",
        int,
        default=0,
    ),
    option("--dry-run", "do not store the result"),
    SNAPSHOT,
    description="Trains small tokenizers on clips that a rule keeps, on as many clips at random, "
    "and on clips that the rule alone rejects, and compares how well they reconstruct clips of "
    "other recordings. Decodes short windows of the clips from their sources. Stores the result in "
    "OUT/proofs; the report and `curate view` show it beside the rule.",
)
def prove(options: argparse.Namespace) -> Result:
    from curator.errors import UsageError
    from curator.tables.proof_store import write_proof
    from curator.tools.proof.rule_proof import (
        CLIPS,
        QUICK_CLIPS,
        QUICK_CONTROLS,
        ProofSettings,
        proof_lines,
    )
    from curator.tools.proof.rule_proof import prove as prove_rule
    from curator.tools.proof.rule_trial import CONTROLS, LEAST_CLIPS, LEAST_CONTROLS
    from curator.tools.review.finished_run import open_finished

    defaults = (QUICK_CLIPS, QUICK_CONTROLS) if options.quick else (CLIPS, CONTROLS)
    settings = ProofSettings(
        clips=options.clips or defaults[0],
        controls=options.controls or defaults[1],
        seed=options.seed,
        minutes=options.minutes,
    )
    for name, value, least in (
        ("clips", settings.clips, LEAST_CLIPS),
        ("controls", settings.controls, LEAST_CONTROLS),
    ):
        if value < least:
            raise UsageError(f"--{name} {value}; expected {least} or more, or no verdict is known")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}; expected a whole number from 0")
    finished = open_finished(options.out, options.snapshot)
    proof = prove_rule(finished, options.rule, settings, _shown)
    print(*proof_lines(proof), sep="\n")
    stored = None
    if not options.dry_run:
        stored = f"{finished.store.uri}/{write_proof(finished.store, proof)}"
        # Both show the verdict beside a reason, which a condition has not.
        shown = "shown by the next `curate report` and in `curate view`" if proof.reasons else ""
        print(f"{stored}  {shown}".rstrip())
    return Result({**asdict(proof), "stored": stored})


def _shown(what: str, done: int, of: int) -> None:
    """Shows progress in one line of a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == of else ""
        print(f"\r{done:,} of {of:,} {what}\033[K", end=end, file=sys.stderr, flush=True)
