"""What asv has recorded, in columns: its files, the index of them, and the series.

- asv_files: reads one file of asv into columns
- index: keeps these columns, so that each file is parsed once
- cached: SQLite files of which nothing but time is lost
- gathering: makes series of the columns of many files
- series: `Series`: the figures of one benchmark over commits
"""
