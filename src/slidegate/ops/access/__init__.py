"""The door between a stranger and the operators' tools."""
