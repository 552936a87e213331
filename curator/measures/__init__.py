"""Measures: signals of pictures, scores of clips, reasons and their documentation.

Pictures are uint8 luma [H, W], upright. `gray_HW` has a longer side of 640 px. `before_HW` and the
later `after_HW` have 320 px. Pictures of smaller sources keep their size. `luma_HW` has the size of
the source, and the source's levels of `black` and `white`. `rows_NL` and `columns_NL` are strips of
`luma_HW` and of its transpose. An overlay sample ("look" in names) is a sample in which overlays
are detected; its maps are packed bits [T, bytes].
"""
