"""A chat over websockets: limited joins, sockets and messages, and bans that shut open sockets."""
