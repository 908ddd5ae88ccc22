"""The dashboard: a static site that says what is right, what is fast, and since when.

    sources    what lies in the results folder, and what of it cannot be read
    standing   what is known of one machine: its newest verdict and time of everything
    matrix     one cell for each op and backend
    series     values over commits, and where they change
    formula    an op page's formulas as MathML
    dialects   its sources, highlighted
    figures    charts, as data for the charting library in the browser
    pages      templates filled in and written

No page asks the network for anything: a site opens from a file.
"""
