"""Why a deviation beyond the bound may be no mistake: overflow, and lost digits."""
