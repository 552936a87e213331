"""Searches the clips of a finished run by a clip, a picture, a video or a text."""
