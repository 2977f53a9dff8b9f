"""The figures of this process, and of all workers that share a store."""
