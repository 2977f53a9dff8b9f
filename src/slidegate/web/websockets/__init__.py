"""Websockets after the handshake."""
