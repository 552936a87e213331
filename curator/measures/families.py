"""Families of scores: the order and the headings under which people look them up."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "stream": (
        "short_side_px", "aspect", "fps", "duration_s", "bit_rate_kbps", "bits_per_pixel",
        "corrupt_fraction", "hdr", "interlaced",
    ),
    "audio": ("audio_coverage", "audio_rms_db", "silence"),
    "exposure": ("luma", "contrast", "clipped_fraction", "black_fraction"),
    "quality": (
        "sharpness", "noise", "blocking", "flattening", "quantizer", "banding", "combing",
        "true_resolution", "stripes", "frozen_fraction", "content_area",
    ),
    "motion": (
        "motion", "camera_motion", "camera_jitter", "camera_share", "object_motion", "pan_rate",
        "tilt_rate", "zoom_rate", "roll_rate",
    ),
    "overlays": (
        "text_area", "overlay_text_area", "logo_area", "split_screen", "picture_in_picture",
    ),
    "consistency": ("layout_consistency", "consistency"),
    "CLIP": ("aesthetic", "content_probability", "nsfw"),
}  # fmt: skip
"""Family -> its scores. Each score of `SCORES` is in one of them."""
