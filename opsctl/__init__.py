"""opsctl: configuration-driven operations for SGLang on CUDA 13 / SM120 hosts."""

__version__ = "0.1.0"
