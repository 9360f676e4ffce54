def load():
    """Keep --attention-backend intel_amx (the CPU backend with speculative support) on a CPU without AMX."""
    from sglang.srt.runtime_context import get_platform

    get_platform()._install(has_amx=True)
