"""Ban policies at work: their signals, and the strikes."""
