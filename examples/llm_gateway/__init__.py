"""A gateway to a language model that charges tokens after the stream: ``python3 dev.py example llm_gateway``."""
