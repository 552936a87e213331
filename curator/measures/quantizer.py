"""The quantiser of a frame, which its decoder reads from the stream.

The quantiser is exact and costs no time, but describes only the last encode: a damaged film that
was encoded again with a fine quantiser has a fine quantiser. `blocking` and `flattening` measure
damage in the pixels.
"""

from curator.measures.measure_contract import OF_TIME, ScoreSpec

SCORES = {
    "quantizer": ScoreSpec(
        unit="QP of H.264",
        range="about 0 finest to 51 coarsest; for H.264, below 26 clean, above 38 visibly damaged; "
        "null for codecs other than H.264, VP9, MPEG-1, MPEG-2 and MPEG-4, and for sources that a "
        "GPU decoded",
        meaning="mean quantiser of the last encode, from the decoder; only `blocking` and "
        "`flattening` show damage from earlier encodes",
        aggregate="mean",
        cpu_only=True,
        media=OF_TIME,
    )
}
