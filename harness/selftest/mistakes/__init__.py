"""Mistakes that people make in backwards, by kind of op; `table` joins them."""
