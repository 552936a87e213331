#!/usr/bin/env python3
"""Scores the caption rules on captions written by hand (`caption_rules.yaml`).

    caption_rules.py                       prints a table, each mistake, and JSON
    caption_rules.py FILE... [--all]       counts excluded English texts, one text a line

A good caption that a rule excludes is a false positive. A bad caption counts as found if any rule
excludes it, and as right if the reason is the expected one.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml
from measure import arguments

from curator.stages.caption.caption_records import Answer
from curator.stages.caption.config import CaptionConfig
from curator.stages.caption.dialogs.answer_rules import problem_of


def reason_of(text: str, language: str = "en") -> str:
    config = CaptionConfig(lengths=("short",), text="short", language=language)
    problem = problem_of(Answer(short=text), config)
    return "good" if problem is None else str(problem.reason)


def count_files(paths: Sequence[Path], show_all: bool) -> None:
    """Prints one row per file of texts that were not written for this benchmark."""
    print("| file | texts | set aside | for |")
    print("|---|---|---|---|")
    for path in paths:
        texts = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        reasons = [reason_of(text) for text in texts]
        counts = Counter(reason for reason in reasons if reason != "good")
        said = ", ".join(f"{name} {n}" for name, n in counts.most_common())
        print(f"| {path.name} | {len(texts)} | {counts.total()} | {said} |")
        for text, reason in zip(texts, reasons, strict=True):
            if show_all and reason != "good":
                print(f"{reason}: {text}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--all", action="store_true", help="print each excluded text")
    args = parser.parse_args()
    if args.files:
        count_files(args.files, args.all)
    else:
        score_lists()


def score_lists() -> None:
    lists = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    mistakes = []
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    reason_of("The first one loads the model of languages.")
    begun_s = time.process_time()
    n_good = 0
    for language, texts in lists["good"].items():
        for text in texts:
            n_good += 1
            if (reason := reason_of(text, language)) != "good":
                found["good"] += 1
                mistakes.append(("good", reason, text))
    for wanted, texts in lists["bad"].items():
        for text in texts:
            reason = reason_of(text)
            found[wanted] += reason != "good"
            right[wanted] += reason == wanted
            if reason != wanted:
                mistakes.append((wanted, reason, text))
    sizes = {wanted: len(texts) for wanted, texts in lists["bad"].items()}
    spent_s = time.process_time() - begun_s
    print("| captions | number | set aside | for the right reason |")
    print("|---|---|---|---|")
    print(f"| good | {n_good} | {found['good']} | |")
    for wanted, size in sizes.items():
        print(f"| {wanted} | {size} | {found[wanted]} | {right[wanted]} |")
    for wanted, reason, text in mistakes:
        print(f"{wanted} taken for {reason}: {text[:100]!r}")
    n_bad = sum(sizes.values())
    numbers = {
        "good": n_good,
        "false_positives": found["good"],
        "bad": n_bad,
        "found": sum(found[wanted] for wanted in sizes),
        "right_reason": right.total(),
        "cpu_ms_a_caption": round(1e3 * spent_s / (n_good + n_bad), 3),
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
