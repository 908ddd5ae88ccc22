"""Dashboard: a static site that says what is right, what is fast, and since when.

- site: `write_site`: the whole site
- sources: reads the results folder, and says which files are unreadable
- machine: one machine: its newest verdict and time of everything
- matrix: one cell for each op and backend
- series: values over commits, and where they change
- dialects: the source of an op's page, highlighted
- charts: charts of pages, drawn by Bokeh in the browser
- pictures: charts as SVG files, for the README
- styles: the look of each backend in every chart
- pages: the contents of each page
- writer: fills in templates and writes files

No page loads anything from the network: the site works when opened from a file.
"""
