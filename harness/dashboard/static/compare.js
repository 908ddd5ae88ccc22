// The comparison page: ratios of all figures that both A and B have.
"use strict"

{
  const data = gradwatch.data.compare
  const form = document.getElementById("choice")
  const body = document.querySelector("#ratios tbody")
  const summary = document.getElementById("summary")
  const chart = document.querySelector(".chart")
  const FIRST = 100 // rows shown at first: more make the page slow
  const more = document.getElementById("more")

  const key = (...parts) => parts.join("\u001f")

  // The ratio of two figures, with the widest interval that both intervals allow.
  const ratioOf = (a, b) => ({
    value: b[0] / a[0],
    low: a[2] && b[1] ? b[1] / a[2] : null,
    high: a[1] && b[2] ? b[2] / a[1] : null,
  })

  const judged = ({value, low, high}) => {
    if (low == null || high == null) return value === 1 ? "equal" : "no interval"
    if (low > 1) return "B slower"
    if (high < 1) return "B faster"
    return "no clear difference"
  }

  // What differs comes first: clear differences, then the others, the largest first.
  const isClear = ({verdict}) => /faster|slower/.test(verdict)
  const byDifference = (x, y) =>
    isClear(y) - isClear(x) || Math.abs(Math.log(y.value)) - Math.abs(Math.log(x.value))

  const inTurn = (a, b) => {
    const found = new Map()
    for (const [op, kase, dtype, phase, x, y, ratio, low, high, verdict] of data.ratios) {
      const what = `${kase} ${dtype} ${phase}`
      if (x === a && y === b) {
        found.set(key(op, what), {value: ratio, low, high, verdict: `B ${verdict}, in turn`})
      } else if (x === b && y === a) {
        const turned = {faster: "slower", slower: "faster"}[verdict] ?? verdict
        found.set(key(op, what), {value: 1 / ratio, low: 1 / high, high: 1 / low, verdict: `B ${turned}, in turn`})
      }
    }
    for (const ratio of found.values()) ratio.verdict = ratio.verdict.replace(/^B (no|not) /, "$1 ")
    return found
  }

  const ofBackends = async (a, b) => {
    const times = new Map()
    for (const [op, kase, dtype, phase, runner, ...figure] of data.times) {
      if (runner === a || runner === b) times.set(key(op, `${kase} ${dtype} ${phase}`, runner), figure)
    }
    const paired = inTurn(a, b)
    const rows = []
    for (const [name, mine] of times) {
      const [op, what, runner] = name.split("\u001f")
      const other = times.get(key(op, what, b))
      if (runner !== a || !other || paired.has(key(op, what))) continue
      rows.push({op, what, unit: "seconds", a: mine[0], b: other[0], ...ratioOf(mine, other)})
    }
    for (const [name, ratio] of paired) {
      const [op, what] = name.split("\u001f")
      const figures = [a, b].map(runner => times.get(key(op, what, runner))?.[0] ?? null)
      rows.push({op, what, unit: "seconds", a: figures[0], b: figures[1], ...ratio})
    }
    return rows
  }

  const commit = (name) => gradwatch.data[name] ?? new Promise((resolve, reject) => {
    const script = document.createElement("script")
    script.src = `commit/${name}.js`
    script.onload = () => resolve(gradwatch.data[name])
    script.onerror = () => reject(new Error(`commit/${name}.js cannot be read`))
    document.head.append(script)
  })

  const ofCommits = async (a, b) => {
    const [before, after] = await Promise.all([commit(a), commit(b)])
    return data.figures.flatMap(([op, line, view, unit], i) => {
      const [x, y] = [before[i], after[i]]
      if (!x || !y || !x[0] || !y[0]) return []
      return [{op, what: `${line}, ${view}`, unit, a: x[0], b: y[0], ...ratioOf(x, y)}]
    })
  }

  // Showing -------------------------------------------------------------------------
  const three = (value) => (value == null ? "" : String(+value.toPrecision(3)))

  const rowOf = (row) => {
    const made = document.createElement("tr")
    const link = document.createElement("a")
    link.href = `op/${row.op.replace(/[^\p{L}\p{N}_-]/gu, "-")}.html`
    link.textContent = row.op
    const interval = row.low == null ? "" : `${three(row.low)} to ${three(row.high)}`
    const cells = [link, row.what, `${three(row.value)}×`, interval, row.verdict,
      gradwatch.formatted(row.a, row.unit), gradwatch.formatted(row.b, row.unit)]
    const values = [null, null, row.value, row.low, null, row.a, row.b]
    cells.forEach((content, i) => {
      const cell = made.insertCell()
      cell.append(content)
      if (values[i] != null) cell.dataset.value = values[i]
    })
    made.cells[4].className = kind(row)
    return made
  }

  const kind = ({verdict}) => (/slower/.test(verdict) ? "worse" : /faster/.test(verdict) ? "better" : "")
  const colours = {worse: "#d4351c", better: "#2e8b57", "": "#7a8590"}

  const picture = (rows) => {
    const sorted = [...rows].sort((a, b) => a.value - b.value)
    const points = {
      x: sorted.map((_, i) => i + 1), y: sorted.map(r => r.value),
      low: sorted.map(r => r.low), high: sorted.map(r => r.high), runner: sorted.map(r => r.op),
      what: sorted.map(r => r.what), detail: sorted.map(r => `${three(r.value)}× ${r.verdict}`),
    }
    gradwatch.fill("ratios", {frame: "ratios", points, colours: sorted.map(r => colours[kind(r)])})
  }

  // Sorts all rows, not only those that are shown.
  const columns = ["op", "what", "value", "low", "verdict", "a", "b"]
  const order = (rows, column, descending) => {
    const key = columns[column]
    rows.sort((x, y) => (typeof x[key] === "string" ? x[key].localeCompare(y[key]) : x[key] - y[key]))
    if (descending) rows.reverse()
  }

  const geometricMean = (rows) =>
    Math.exp(rows.reduce((sum, r) => sum + Math.log(r.value), 0) / rows.length)

  let rows = []
  let all = false

  const show = () => {
    const words = form.filter.value.toLowerCase().split(/\s+/).filter(Boolean)
    const matches = (r) => words.every(w => `${r.op} ${r.what} ${r.verdict}`.toLowerCase().includes(w))
    const kept = rows.filter(r => matches(r) && (!form.clear.checked || isClear(r)))
    const sorted = document.querySelector("#ratios th[aria-sort]")
    if (sorted) order(kept, sorted.cellIndex, sorted.getAttribute("aria-sort") === "descending")
    body.replaceChildren(...kept.slice(0, all ? kept.length : FIRST).map(rowOf))
    more.hidden = all || kept.length <= FIRST
    more.textContent = `Show all ${kept.length} rows`
    picture(kept)
    const count = (word) => kept.filter(r => r.verdict.includes(word)).length
    summary.textContent = kept.length
      ? `${kept.length} of ${rows.length} comparisons: B is slower in ${count("slower")}, faster in ${count("faster")}; ` +
        `geometric mean ${three(geometricMean(kept))}×.`
      : rows.length ? "No comparison is left: change the filter." : "A and B have no figure in common."
  }

  const compute = async () => {
    const {a, b} = form
    try {
      const found = await (form.mode.value === "commits" ? ofCommits : ofBackends)(a.value, b.value)
      rows = found.map(r => ({...r, verdict: r.verdict ?? judged(r)})).sort(byDifference)
      show()
    } catch (error) {
      summary.textContent = `Not compared: ${error.message}.`
    }
  }

  const offer = (wanted = {}) => {
    const backends = [...new Set(data.times.map(r => r[4]).concat(data.ratios.flatMap(r => [r[4], r[5]])))].sort()
    const commits = [...data.commits].reverse()
    const options = form.mode.value === "commits"
      ? () => commits.map(([hash, subject, tag]) => new Option([hash.slice(0, 8), tag, subject].filter(Boolean).join(" ").slice(0, 60), hash))
      : () => backends.map(name => new Option(name, name))
    form.a.replaceChildren(...options())
    form.b.replaceChildren(...options())
    if (form.mode.value === "commits") form.a.selectedIndex = Math.min(1, commits.length - 1)
    else form.b.selectedIndex = Math.min(1, backends.length - 1)
    for (const side of ["a", "b"]) {
      if ([...form[side].options].some(o => o.value === wanted[side])) form[side].value = wanted[side]
    }
    compute()
  }

  // The address contains the choice, so that it can be shared.
  const keep = () => {
    const parameters = new URLSearchParams({mode: form.mode.value, a: form.a.value, b: form.b.value})
    if (form.filter.value) parameters.set("filter", form.filter.value)
    if (form.clear.checked) parameters.set("clear", "1")
    try { history.replaceState(null, "", `?${parameters}`) } catch { /* refused to a file */ }
  }

  form.addEventListener("submit", event => event.preventDefault())
  form.addEventListener("change", (event) => {
    if (event.target.name === "mode") offer()
    else if (event.target.name === "a" || event.target.name === "b") compute()
    else show()
    keep()
  })
  form.filter.addEventListener("input", () => { show(); keep() })
  document.getElementById("swap").addEventListener("click", () => {
    [form.a.value, form.b.value] = [form.b.value, form.a.value]
    compute()
    keep()
  })
  document.querySelector("#ratios thead").addEventListener("click", show)
  more.addEventListener("click", () => { all = true; show() })
  chart.addEventListener("drawn", show)

  const asked = new URLSearchParams(location.search)
  if (asked.get("mode") === "commits" || (!data.times.length && !data.ratios.length && data.commits.length)) form.mode.value = "commits"
  form.filter.value = asked.get("filter") ?? asked.get("op") ?? ""
  form.clear.checked = asked.get("clear") === "1"
  offer({a: asked.get("a"), b: asked.get("b")})
}
