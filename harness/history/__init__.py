"""History: measures commits, records the figures with asv, and finds changes in them.

- measure: `measure`: judges and times the `impls` of one commit
- asv_environment: asv plug-in: uses the environments that `make` made
- asv_results: `read`: asv's result files as `Series`; the step to a wrong gradient
- changepoints: `find_changes`: steps and slow drift in a series
"""
