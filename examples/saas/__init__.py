"""An API whose customers have plans, in a database: ``python3 dev.py example saas``."""
