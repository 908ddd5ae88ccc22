"""Implementations: each op written in several ways, and the backends that run them.

- contract: `Op`, `Case`, `Backend`: the definitions of a page and of a backend
- catalogue: finds ops and backends by file name, without importing a framework
- graph: a small automatic differentiation engine on NumPy
- ops: one page for each op
- backends: one file for each backend; only these import a framework
"""
