// The history chart of an op: one view (metric, size, dtype) at a time.
"use strict"

{
  const {home} = document.body.dataset
  const place = document.querySelector('.chart[data-chart="history"]')
  const select = document.getElementById("view")
  const commit = (i) => gradwatch.data.commits[i].join(" ")

  // A ratio can be 0, which a logarithmic axis cannot show: it is drawn below all others.
  const zeroOf = (series) => {
    const positive = series.flatMap(s => s.values).filter(v => v > 0)
    return positive.length ? Math.min(...positive) / 2 : 1
  }

  const pointsOf = (series) => {
    const points = {x: [], y: [], low: [], high: [], runner: [], what: [], detail: []}
    const zero = zeroOf(series)
    for (const {line, unit, values, low, high} of series) {
      values.forEach((value, i) => {
        if (value === null) return
        const row = {x: i, y: value || zero, low: low[i] || null, high: high[i] || null, runner: line,
          what: commit(i), detail: gradwatch.formatted(value, unit)}
        for (const [key, cell] of Object.entries(row)) points[key].push(cell)
      })
    }
    return points
  }

  const steps = (series) => {
    const rings = {x: [], y: [], colour: []}
    for (const {values, steps} of series) {
      for (const [index, worse] of steps) {
        rings.x.push(index)
        rings.y.push(values[index] || zeroOf(series))
        rings.colour.push(gradwatch.role(worse ? "--bad" : "--good"))
      }
    }
    return rings
  }

  const row = (kind, cells) => {
    const made = document.createElement("tr")
    for (const text of cells) {
      const cell = document.createElement(kind)
      if (kind === "th") cell.scope = "col"
      cell.textContent = text
      made.append(cell)
    }
    return made
  }

  const tabulate = (series) => {
    const rows = gradwatch.data.commits.map((_, i) =>
      row("td", [commit(i), ...series.map(s => gradwatch.formatted(s.values[i], s.unit))]))
    const head = row("th", ["commit", ...series.map(s => s.line)])
    document.getElementById("history-table").replaceChildren(head, ...rows.reverse())
  }

  const show = () => {
    const series = gradwatch.data.history.filter(s => s.view === select.value)
    gradwatch.unit = series[0]?.unit
    gradwatch.fill("history", {frame: "history", points: pointsOf(series), size: 4, joined: true})
    gradwatch.source("history", "steps").data = steps(series)
    tabulate(series)
  }

  const follow = () => {
    const points = gradwatch.source("history", "points")
    points.selected.change.connect(() => {
      const [at] = points.selected.indices
      if (at !== undefined) location.href = `${home}commits.html#c-${gradwatch.data.commits[points.data.x[at]][0]}`
    })
  }

  place.addEventListener("drawn", () => {
    const views = [...new Set(gradwatch.data.history.map(s => s.view))].sort()
    select.replaceChildren(...views.map(v => new Option(v, v)))
    select.value = views.find(v => v.startsWith("backward")) ?? views[0]
    select.addEventListener("change", show)
    follow()
    show()
  })
}
