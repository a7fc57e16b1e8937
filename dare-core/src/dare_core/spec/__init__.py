"""From YAML to a validated, resolved run plan, with file:line for every problem."""
