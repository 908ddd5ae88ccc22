"""History: measures commits, records the figures with asv, and finds changes in them.

- measure: `measure`: judges and times the `impls` of one commit
- asv_environment: asv plug-in: uses the environments that `make` made
- asv_results: `read`: asv's result files as series of values
- series: `Series`: the figures of one benchmark over commits, and since when wrong
- changepoints: `find_changes`: steps and slow drift in a series
- noise: drops stray values of a series and estimates its noise
- steps: cuts a series into levels, and recognises ramps that fit better
"""
