"""The Pythons that run the frameworks.

- interpreters: which of them runs which framework, and what to do if none does
"""
