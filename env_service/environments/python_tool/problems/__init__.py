"""Generated maths and code-tracing problems with their answers, and the script that makes them."""
