// Charts are drawn by Bokeh: those near the screen first, the others when the browser is idle.
// A chart is a Bokeh frame (frames.js) plus points; see harness/dashboard/figures.py.
"use strict"

{
  const {up, home} = document.body.dataset
  const needs = document.currentScript.dataset.needs.split(" ").filter(Boolean)
  const read = {}
  const drawn = new Map() // by name: the root model and the chart that fills it
  const LIMIT = "#d4351c"

  const script = (address) => (read[address] ??= new Promise((resolve, reject) => {
    const element = document.createElement("script")
    element.src = address
    element.onload = resolve
    element.onerror = () => reject(new Error(`${address} cannot be read`))
    document.head.append(element)
  }))

  const role = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
  gradwatch.role = role

  const units = {
    seconds: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
    bytes: [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  }
  gradwatch.unit = "seconds"
  gradwatch.formatted = (value, unit) => {
    if (value == null) return ""
    if (!units[unit]) return `${+value.toPrecision(3)} ${unit ?? ""}`.trim()
    const [size, name] = units[unit].find(u => value >= 0.9995 * u[0]) ?? units[unit].at(-1)
    return `${+(value / size).toPrecision(3)} ${name}`
  }

  // Filling -------------------------------------------------------------------------
  const models = (name) => [...drawn.get(name).model.document.all_models]
  const source = (name, which) =>
    models(name).find(m => m.type === "ColumnDataSource" && m.name === which)

  const legendOf = (group) => document.querySelector(`.legend[data-for="${group}"]`)
  const looksOf = (group) => {
    const inputs = legendOf(group)?.querySelectorAll("input[data-colour]") ?? []
    return new Map([...inputs].map(i => [i.value, {...i.dataset, shown: i.checked}]))
  }

  const plain = {colour: "#7a8590", marker: "circle", dash: "solid", shown: true}

  // Points of the runners that the legend shows, with their looks.
  const dressed = ({points, size = 6, colours}, looks) => {
    const columns = Object.fromEntries(Object.keys(points).map(k => [k, []]))
    Object.assign(columns, {colour: [], marker: [], size: []})
    points.x.forEach((_, i) => {
      const look = looks.get(points.runner[i]) ?? plain
      if (!look.shown) return
      for (const key of Object.keys(points)) columns[key].push(points[key][i])
      columns.colour.push(colours?.[i] ?? look.colour)
      columns.marker.push(look.marker)
      columns.size.push(size)
    })
    columns.low = columns.low.map((v, i) => v ?? columns.y[i])
    columns.high = columns.high.map((v, i) => v ?? columns.y[i])
    return columns
  }

  const joined = (columns, looks, limit) => {
    const lines = {xs: [], ys: [], colour: [], dash: []}
    const add = (xs, ys, colour, dash) => {
      for (const [key, value] of Object.entries({xs, ys, colour, dash})) lines[key].push(value)
    }
    for (const runner of new Set(columns.runner)) {
      const mine = columns.x.map((_, i) => i).filter(i => columns.runner[i] === runner)
      const look = looks.get(runner) ?? plain
      add(mine.map(i => columns.x[i]), mine.map(i => columns.y[i]), look.colour, look.dash)
    }
    if (limit) add(limit.map(p => p[0]), limit.map(p => p[1]), LIMIT, "dashed")
    return lines
  }

  const extent = (values, logarithmic) => {
    const sound = values.filter(v => Number.isFinite(v) && (!logarithmic || v > 0))
    if (!sound.length) return logarithmic ? [0.1, 10] : [0, 1]
    const [low, high] = sound.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity])
    if (!logarithmic) return [low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5]
    const margin = high / low < 2 ? 1.6 : (high / low) ** 0.06 // decades need room
    return [low / margin, high * margin]
  }

  const range = (model, [start, end]) =>
    model.setv({start, end, reset_start: start, reset_end: end})

  gradwatch.fill = (name, chart) => {
    const entry = drawn.get(name)
    if (!entry) return
    entry.chart = chart
    const looks = looksOf(entry.group)
    const columns = dressed(chart, looks)
    source(name, "points").data = columns
    source(name, "lines").data = chart.joined
      ? joined(columns, looks, chart.limit) : {xs: [], ys: [], colour: [], dash: []}
    const {x_range, y_range, x_scale} = entry.model
    const limit = chart.limit ?? []
    const everyY = [...columns.low, ...columns.high, ...columns.y, ...limit.map(p => p[1])]
    range(y_range, chart.y ?? extent(everyY, true))
    if (chart.frame !== "agreement") {
      range(x_range, extent([...columns.x, ...limit.map(p => p[0])], x_scale.type === "LogScale"))
    }
  }
  gradwatch.source = source

  // Colours and legends ---------------------------------------------------------------
  const dress = (name) => {
    const narrow = innerWidth < 700
    const [text, line] = [role("--text"), role("--line")]
    for (const model of models(name)) {
      if (model.type.endsWith("Axis")) {
        if (narrow && model.major_label_orientation > 0) model.major_label_orientation = "vertical"
        model.setv({
          major_label_text_color: text, axis_label_text_color: text,
          axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null,
          axis_label_text_font_style: "normal",
        })
      } else if (model.type === "Grid") {
        model.setv({grid_line_color: line, grid_line_alpha: 0.6})
      } else if (model.type === "Span" && model.line_color !== LIMIT) {
        model.setv({line_color: text})
      }
    }
  }
  document.addEventListener("gradwatch-theme", () => drawn.forEach((_, name) => dress(name)))

  for (const legend of document.querySelectorAll(".legend")) {
    legend.addEventListener("change", ({target}) => {
      const own = target.closest(".family")
      const boxes = [...own.querySelectorAll("input[data-colour]")]
      const all = own.querySelector("input[data-all]")
      if (target === all) for (const box of boxes) box.checked = all.checked
      all.checked = boxes.every(box => box.checked)
      all.indeterminate = !all.checked && boxes.some(box => box.checked)
      for (const [name, {group, chart}] of drawn) {
        if (group === legend.dataset.for && chart) gradwatch.fill(name, chart)
      }
    })
  }

  // Drawing ---------------------------------------------------------------------------
  const fail = (place, error) => {
    place.style.minHeight = ""
    place.textContent = `No chart: ${error.message}. The table has its figures.`
  }
  gradwatch.fail = fail

  // A frame can be drawn several times on a page, so its models need unique names.
  const cloned = (frame, name) =>
    JSON.parse(JSON.stringify(gradwatch.data.frames[frame]).replace(/"(p\d+)"/g, `"$1-${name}"`))

  const draw = async (place) => {
    const {chart: name, group} = place.dataset
    try {
      await Promise.all([`${up}static/bokeh.min.js`, `${home}frames.js`, ...needs].map(script))
      const chart = gradwatch.data.charts?.[name]
      place.id = `chart-${name}`
      const item = {...cloned(chart?.frame ?? name, name), target_id: place.id}
      const views = await Bokeh.embed.embed_item(item)
      drawn.set(name, {model: [...views][0].model, group})
      if (chart) gradwatch.fill(name, chart)
      dress(name)
      place.dispatchEvent(new Event("drawn"))
      place.dataset.drawn = "yes"
    } catch (error) {
      fail(place, error)
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter(e => e.isIntersecting)) start(entry.target)
  }, {rootMargin: "300px"})
  const started = new Set()
  const start = (place) => {
    if (started.has(place)) return
    near.unobserve(place)
    started.add(place)
    return draw(place)
  }
  const places = [...document.querySelectorAll(".chart")]
  places.forEach(place => near.observe(place))

  // The others follow when the browser has nothing to do: a page that is printed or
  // photographed as a whole shows them, too. What is hidden has no width to draw in.
  const idle = () => new Promise(done => (window.requestIdleCallback ?? setTimeout)(done))
  const startAll = async () => {
    for (const place of places) {
      await idle()
      if (place.offsetWidth) await start(place)
    }
  }
  addEventListener("load", startAll)
}
