"""What looks at traffic from outside: access logs."""
