"""Patches for an installed SGLang and FlashInfer: versioned, verified, reversible."""
