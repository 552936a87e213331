"""How well `curate search --text` finds clips by captions: ranks of known clips.

    text_search.py [--models FOLDER]

The captions are those of `caption_claims_real.yaml` (the right ones), the queries those of
`text_search.yaml`. Each query looks for one caption. Prints the share of queries whose clip is
first, is among the first five, and the mean of 1 / rank, by words alone, by the meaning of
captions alone, and by both. Every second query was used to choose how both are joined.
"""

import argparse
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml

from curator.models.weight_store import ModelStore
from curator.runs.caption_vectors import CaptionVectors
from curator.tools.retrieval.text_search import WORDS_POWER, TextSearch

FOLDER = Path(__file__).parent
_CLAIM = re.compile(r"<[a-z]+[+?-] ?|>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="models folder; its cache of vectors is used, too")
    options = parser.parse_args()
    rows = yaml.safe_load((FOLDER / "caption_claims_real.yaml").read_text())
    queries = yaml.safe_load((FOLDER / "text_search.yaml").read_text())
    captions = [_CLAIM.sub("", row["right"]) for row in rows]
    clips = pa.table(
        {
            "caption": captions,
            "tags": pa.array([[]] * len(captions), pa.list_(pa.string())),
            # Names of files would give many clips away.
            "source_uri": [f"{number}.mp4" for number in range(len(captions))],
        }
    )
    vectors = CaptionVectors(ModelStore.at(options.models), "text_search.py")
    words, both = TextSearch(clips, None), TextSearch(clips, vectors)
    begun_s = time.monotonic()
    both.scores("a first query")
    print(f"{len(captions)} captions, {time.monotonic() - begun_s:.1f} s for their vectors")
    print("| queries | part | compared | first | among five | mean 1/rank |\n" + "|---" * 6 + "|")
    for kind, name in enumerate(("remembered words", "other words")):
        for part, start in (("tuned on", 0), ("blind", 1)):
            ranks: dict[str, list[int]] = {"words": [], "meaning": [], "both": []}
            for number in list(queries)[start::2]:
                text = queries[number][kind]
                shares, both_scores = words.scores(text)[0], both.scores(text)[0]
                ranks["words"].append(_rank(shares, number))
                ranks["meaning"].append(_rank(2 * both_scores - shares**WORDS_POWER, number))
                ranks["both"].append(_rank(both_scores, number))
            for way, found in ranks.items():
                at = np.array(found)
                shown = ((at == 1).mean(), (at <= 5).mean(), (1 / at).mean())
                figures = " | ".join(f"{share:.2f}" for share in shown)
                print(f"| {name} ({len(found)}) | {part} | {way} | {figures} |")


def _rank(scores: np.ndarray, number: int) -> int:
    """Returns the rank of a clip; of equal scores, the worst."""
    return int((scores >= scores[number]).sum())


if __name__ == "__main__":
    main()
