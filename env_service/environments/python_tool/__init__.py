"""A stateful Python interpreter in a sandbox, with maths and code tasks; registered as "python"."""
