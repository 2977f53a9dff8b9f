"""``slidegate run``: an application behind the gate, without a line of its code changed."""
