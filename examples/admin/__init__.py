"""An API with plans, and the admin API with which its operators look after it."""
