"""What mypy must say of wrong uses of records: strict, it reports an `ignore` that it needs not."""

from curator.records.clips import Clip, Written
from curator.tables.clip_rows import ClipRow


def right(clip: Clip, row: ClipRow) -> float:
    clip.decision = "rejected"
    row.caption = None
    return clip.end_s - row.start_s + (row.scores["motion"] or 0.0)


def wrong(clip: Clip, row: ClipRow, written: Written) -> None:
    print(clip.widht)  # type: ignore[attr-defined]
    row.decision = "droped"  # type: ignore[assignment]
    row.captoin = "a"  # type: ignore[attr-defined]
    row.width = "640"  # type: ignore[assignment]
    print(written.mp4_size)  # type: ignore[attr-defined]
    print(clip.caption_clip_score + 1)  # type: ignore[operator]
