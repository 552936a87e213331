"""Footage made by code: the films of `curate demo` and of the tests.

Real films cannot be shipped, and generated test cards have no edges, grain or faces to measure. So
shots are filmed by a virtual camera over the photographs inside scikit-image's wheel, edited with
cuts and dissolves whose places are known exactly, and written with the encoders of PyAV's wheel.
Nothing here is used by the pipeline itself.
"""
