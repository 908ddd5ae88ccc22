"""The Pythons that run the frameworks.

- interpreters: which of them runs which framework, and what to do if none does
- question: what one of them says that it has, without importing it
"""
