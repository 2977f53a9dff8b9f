"""The reference model: windows, quotas and bans implemented for correctness only, with the standard library."""
