"""The map from ATen operators to the engine, by kind of operator; `table` joins it."""
