// The history chart of an op: one view (metric, size, dtype) of some commits at a time.
// Names and figures of commits lie in blocks; those of the chosen commits are loaded.
"use strict"

{
  const {home} = document.body.dataset
  const place = document.querySelector('.chart[data-chart="history"]')
  const select = document.getElementById("view")
  const ranges = document.getElementById("range")
  let names = [] // of the chosen commits
  let first = 0 // the index of the first of them
  const commit = (i) => names[i - first].join(" ")

  const loaded = {}
  const script = (address, key) => (loaded[address] ??= new Promise((resolve, reject) => {
    const element = document.createElement("script")
    element.src = address
    element.onload = () => resolve(gradwatch.data[key])
    element.onerror = () => reject(new Error(`${address} cannot be read`))
    document.head.append(element)
  }))

  // The blocks of a choice: their numbers, oldest first.
  const blocksOf = (choice) => {
    const {commits, block} = gradwatch.data.history
    const count = Math.ceil(commits / block)
    const all = [...Array(count).keys()]
    if (choice === "all") return all
    if (choice !== "newest") return [Number(choice)]
    const newest = commits - (count - 1) * block
    return all.slice(newest < block / 2 ? -2 : -1) // a chart of three commits shows nothing
  }

  const offerRanges = () => {
    const {commits, block} = gradwatch.data.history
    const older = [...Array(Math.ceil(commits / block)).keys()].reverse().map((k) =>
      new Option(`${k * block + 1} to ${Math.min((k + 1) * block, commits)}`, k))
    const all = new Option(`all ${commits}`, "all")
    const few = blocksOf("newest").length === older.length
    ranges.replaceChildren(...(few ? [all] : [new Option("the newest", "newest"), ...older, all]))
  }

  // The blocks of the chosen commits.
  const read = async () => {
    const blocks = blocksOf(ranges.value)
    const parts = await Promise.all(blocks.map(k => Promise.all([
      script(`${home}commits/${k}.js`, `commits-${k}`),
      script(`${ranges.dataset.op}.history/${k}.js`, `history-${k}`),
    ])))
    return {parts, start: blocks[0] * gradwatch.data.history.block}
  }

  // The series of a view with the figures of the chosen commits.
  const figures = (parts, view) => {
    const column = (i, which) => parts.flatMap(([, part]) => part[i][which])
    return gradwatch.data.history.series.flatMap((s, i) => s.view === view
      ? [{...s, values: column(i, 0), low: column(i, 1), high: column(i, 2)}] : [])
  }

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
        const row = {x: first + i, y: value || zero, low: low[i] || null, high: high[i] || null, runner: line,
          what: commit(first + i), detail: gradwatch.formatted(value, unit)}
        for (const [key, cell] of Object.entries(row)) points[key].push(cell)
      })
    }
    return points
  }

  const steps = (series) => {
    const rings = {x: [], y: [], colour: []}
    for (const {values, steps} of series) {
      for (const [index, worse] of steps) {
        if (index < first || index >= first + names.length) continue
        rings.x.push(index)
        rings.y.push(values[index - first] || zeroOf(series))
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
    const rows = names.map((name, i) =>
      row("td", [name.join(" "), ...series.map(s => gradwatch.formatted(s.values[i], s.unit))]))
    const head = row("th", ["commit", ...series.map(s => s.line)])
    document.getElementById("history-table").replaceChildren(head, ...rows.reverse())
  }

  let turns = 0
  const show = async () => {
    const turn = ++turns
    const {parts, start} = await read()
    if (turn !== turns) return // another choice was made meanwhile
    names = parts.flatMap(([part]) => part)
    first = start
    const series = figures(parts, select.value)
    gradwatch.unit = series[0]?.unit
    gradwatch.fill("history", {frame: "history", points: pointsOf(series), size: 4, joined: true})
    gradwatch.source("history", "steps").data = steps(series)
    tabulate(series)
  }

  const follow = () => {
    const points = gradwatch.source("history", "points")
    points.selected.change.connect(() => {
      const [at] = points.selected.indices
      if (at !== undefined) location.href = `${home}commits.html#c-${names[points.data.x[at] - first][0]}`
    })
  }

  place.addEventListener("drawn", () => {
    const views = [...new Set(gradwatch.data.history.series.map(s => s.view))].sort()
    select.replaceChildren(...views.map(v => new Option(v, v)))
    select.value = views.find(v => v.startsWith("backward")) ?? views[0]
    offerRanges()
    const shown = () => show().catch(error => gradwatch.fail(place, error))
    select.addEventListener("change", shown)
    ranges.addEventListener("change", shown)
    follow()
    shown()
  })
}
