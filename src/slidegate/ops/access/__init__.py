"""Who may look and change: the door between a stranger and the operators' tools."""
