"""Checkpoints: the NVFP4 number format and the sample checkpoint made from it."""
