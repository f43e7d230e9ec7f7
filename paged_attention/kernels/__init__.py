"""Attention over blocks as Triton kernels: the same results as plain torch, on a GPU.

They run on CUDA, or on the CPU under TRITON_INTERPRET=1, which must be in the
environment before this package is imported. They take their arguments on trust:
`attention.paged_attention` is the door that checks.
"""
