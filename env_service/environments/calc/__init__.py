"""Chains of digits and opaque operators, worked out with a calculator."""
