"""``slidegate check``: the doctor, who looks at a configuration before its users do."""
