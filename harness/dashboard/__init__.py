"""Dashboard: a static site that shows what is right, what is fast, and since when.

- site: `write_site`: the whole site, from templates
- matrix: the newest results, one cell for each op and backend; styles of backends
- charts: values over commits and their changes, drawn by Bokeh in the browser
- pages: the contents of each page; the file of an op: title, group, formulas, code

No page loads anything from the network: the site works when opened from a file.
"""
