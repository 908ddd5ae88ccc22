"""Dashboard: a static site that shows what is right, what is fast, and since when.

- site: `write_site`: the whole site, from templates
- machine: reads the results folder; the newest verdict and time of everything
- matrix: one cell for each op and backend; backends by framework, and their styles
- series: values over commits, and their changes of level
- charts: charts of pages, drawn by Bokeh in the browser
- pages: the contents of each page; the file of an op: title, group, formulas, code

No page loads anything from the network: the site works when opened from a file.
"""
