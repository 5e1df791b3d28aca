"""A contained Python interpreter built from Linux primitives; standard library only, and nothing is imported here.

The launcher and the interpreter run this package under `python -P -s -S` with no site-packages and no parent package,
so its modules import each other relatively and nothing else of the project.
"""
