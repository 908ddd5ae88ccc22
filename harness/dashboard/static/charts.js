// Charts are drawn by Bokeh, those near the screen first; data: harness/dashboard/charts.py.
"use strict"

{
  const drawn = new Map() // by place: Bokeh's document
  const documentOf = (name) => [...drawn].find(([place]) => place.dataset.chart === name)?.[1]
  const renderers = (bokeh) => [...bokeh.all_models].filter(m => m.type === "GlyphRenderer")
  const role = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

  gradwatch.source = (name, which) => documentOf(name)?.get_model_by_name(which)

  // The columns of the points that a chart shows.
  gradwatch.points = (name) => {
    const {view, data_source} = renderers(documentOf(name)).find(r => r.glyph.type === "Scatter" && r.data_source.name === "points")
    const indices = [...view.indices]
    return Object.fromEntries(data_source.columns().map(
      column => [column, indices.map(i => data_source.get_column(column)[i])]))
  }

  const dress = (bokeh) => {
    const [text, line] = [role("--text"), role("--line")]
    for (const model of bokeh.all_models) {
      if (model.type.endsWith("Axis")) {
        if (innerWidth < 700 && model.major_label_orientation > 0) model.major_label_orientation = "vertical"
        model.setv({
          major_label_text_color: text, axis_label_text_color: text,
          axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null,
          axis_label_text_font_style: "normal",
        })
      } else if (model.type === "Grid") {
        model.setv({grid_line_color: line, grid_line_alpha: 0.6})
      }
    }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(dress))

  // Hides the backends that the legend of a chart's group does not show.
  const hide = (bokeh, {dataset}) => {
    const boxes = document.querySelectorAll(`.legend[data-for="${dataset.group}"] input[value]`)
    const hidden = new Set([...boxes].filter(box => !box.checked).map(box => box.value))
    for (const {view, data_source} of renderers(bokeh)) {
      const shown = Array.from(data_source.get_column("runner") ?? [], name => !hidden.has(name))
      view.filter.booleans = hidden.size ? shown : null
    }
  }
  for (const legend of document.querySelectorAll(".legend")) {
    const name = `shown-${legend.dataset.for}`
    const boxes = [...legend.querySelectorAll("input[value]")]
    const chosen = () => boxes.filter(box => box.checked).map(box => box.value).join()
    const first = chosen()
    const summarise = () => {
      for (const all of legend.querySelectorAll("input[data-all]")) {
        const own = [...all.closest(".family").querySelectorAll("input[value]")]
        all.checked = own.every(box => box.checked)
        all.indeterminate = !all.checked && own.some(box => box.checked)
      }
    }
    const given = gradwatch.choice.get(name)
    if (given) for (const box of boxes) box.checked = given.split(",").includes(box.value)
    summarise()
    legend.addEventListener("change", ({target}) => {
      const own = target.closest(".family").querySelectorAll("input[value]")
      if ("all" in target.dataset) for (const box of own) box.checked = target.checked
      summarise()
      gradwatch.keep(name, chosen() === first ? "" : chosen() || ",")
      drawn.forEach(hide)
      drawn.forEach(tabulate)
    })
  }

  // The table of the chart that a reader chooses: a row for each commit, the newest first.
  const tabulate = (_, place) => {
    const table = document.getElementById(place.dataset.table)
    if (!table) return
    const {runner, what, detail, x} = gradwatch.points(place.dataset.chart)
    const lines = [...new Set(runner)]
    const rows = new Map()
    x.forEach((at, i) => {
      const row = rows.get(at) ?? rows.set(at, [what[i], ...lines.map(() => "")]).get(at)
      row[1 + lines.indexOf(runner[i])] = detail[i]
    })
    const newest = [...rows].sort(([a], [b]) => b - a).map(([, cells]) => cells)
    table.replaceChildren(...[["commit", ...lines], ...newest].map((cells, i) => {
      const row = document.createElement("tr")
      row.append(...cells.map((text) => {
        const cell = document.createElement(i ? "td" : "th")
        cell.textContent = text
        return cell
      }))
      return row
    }))
  }

  const library = () => (library.read ??= new Promise((resolve, reject) => {
    const element = document.createElement("script")
    element.src = `${document.body.dataset.up}static/bokeh.min.js`
    element.onload = resolve
    element.onerror = () => reject(new Error("bokeh.min.js cannot be read"))
    document.head.append(element)
  }))

  const draw = async (place) => {
    const name = place.dataset.chart
    try {
      await library()
      // Charts of a kind are one figure: on a page, each model needs a name of its own.
      const own = JSON.stringify(gradwatch.data.charts[name]).replace(/"(p\d+)"/g, `"$1-${name}"`)
      place.id = `chart-${name}`
      drawn.get(place)?.clear()
      place.replaceChildren()
      const views = await Bokeh.embed.embed_item({...JSON.parse(own), target_id: place.id})
      const bokeh = [...views][0].model.document
      drawn.set(place, bokeh)
      dress(bokeh)
      hide(bokeh, place)
      tabulate(bokeh, place)
      place.dataset.drawn = name
      place.dispatchEvent(new Event("drawn"))
    } catch (error) {
      place.style.minHeight = ""
      place.textContent = `No chart: ${error.message}. The table has its figures.`
    }
  }

  for (const select of document.querySelectorAll("select[data-chooses]")) {
    const place = document.getElementById(select.dataset.chooses).querySelector(".chart")
    select.addEventListener("change", () => {
      place.dataset.chart = select.value
      draw(place)
    })
  }

  const started = new Set()
  const start = (place) => {
    if (started.has(place)) return
    started.add(place)
    return draw(place)
  }
  const places = [...document.querySelectorAll(".chart")]
  const near = new IntersectionObserver(
    entries => entries.filter(e => e.isIntersecting).forEach(e => start(e.target)), {rootMargin: "300px"})
  places.forEach(place => near.observe(place))

  // The others follow when the browser has nothing to do: a page that is printed or
  // photographed as a whole shows them, too. What is hidden has no width to draw in.
  addEventListener("load", async () => {
    for (const place of places) {
      await new Promise(done => (window.requestIdleCallback ?? setTimeout)(done))
      if (place.offsetWidth) await start(place)
    }
  })
}
