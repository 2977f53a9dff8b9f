"""Limits by plan, wrong passwords counted, a shadow rule and hot clients: `uvicorn examples.tiers.app:app`."""
