"""Formulas: runs the code of pages in forks, and hands their graphs on as data.

- pages: `Pages`: asks a worker for formulas as graphs, one fork for each page
- fork: `Fork`: a copy of a process, whose changes end with it
"""
