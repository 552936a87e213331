"""Measures: their signals of a picture, their scores of a clip, their reasons and words.

Pictures are uint8 luma [H, W]: `gray_HW` with a longer side of 640 px, `before_HW` and the later
`after_HW` of 320 px and one size, or less where the source is smaller; `luma_HW` in the source's
own size, with its levels of `black` and `white`. `rows_NL` and `columns_NL` are strips of it and of
it turned. A look is a sample of which more is stored; its maps are packed bits [T, bytes].
"""
