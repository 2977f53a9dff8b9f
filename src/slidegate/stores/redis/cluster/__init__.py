"""Redis Cluster: nodes, slots, and demands over several slots."""
