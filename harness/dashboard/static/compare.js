// The comparison page: ratios of all figures that both A and B have.
"use strict"

{
  const {backends, commits, figures} = gradwatch.data.compare
  const form = document.getElementById("choice")
  const body = document.querySelector("#ratios tbody")
  const summary = document.getElementById("summary")
  const FIRST = 100 // rows shown at first: more make the page slow
  const LEAST = 1.03 // what differs by less is called neither faster nor slower
  const more = document.getElementById("more")

  const three = (value) => (value == null ? "" : String(+value.toPrecision(3)))

  const formatted = (value, unit) => {
    if (value == null || unit !== "seconds") return value == null ? "" : `${three(value)} ${unit ?? ""}`.trim()
    const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]
    const [size, name] = units.find(([size]) => value >= 0.9995 * size) ?? units.at(-1)
    return `${three(value / size)} ${name}`
  }

  // Computing -------------------------------------------------------------------------
  const judged = (value, low, high) => {
    if (low == null || high == null) return value === 1 ? "equal" : "no interval"
    if (low > LEAST) return "B slower"
    if (high < 1 / LEAST) return "B faster"
    return "no clear difference"
  }

  // The ratio of two figures with the widest interval that both allow, or as measured in turn.
  const ratios = (figures, before, after, turns = []) => figures.flatMap(([op, what, unit], i) => {
    const [a, b] = [before?.[i], after?.[i]]
    const row = {op, what, unit, a: a?.[0], b: b?.[0]}
    if (turns[i]) {
      const [value, low, high, verdict] = turns[i]
      return [{...row, value, low, high, verdict}]
    }
    if (!row.a || !row.b) return []
    const value = b[0] / a[0]
    const low = a[2] && b[1] ? b[1] / a[2] : null
    const high = a[1] && b[2] ? b[2] / a[1] : null
    return [{...row, value, low, high, verdict: judged(value, low, high)}]
  })

  const commit = (name) => gradwatch.data[name] ?? new Promise((resolve, reject) => {
    const script = document.createElement("script")
    script.src = `commit/${name}.js`
    script.onload = () => resolve(gradwatch.data[name])
    script.onerror = () => reject(new Error(`commit/${name}.js cannot be read`))
    document.head.append(script)
  })

  const compute = async () => {
    const [a, b] = [form.a.value, form.b.value]
    try {
      if (form.mode.value === "commits") {
        rows = ratios(figures, ...await Promise.all([commit(a), commit(b)]))
      } else {
        const turns = backends.turns.find(([x, y]) => x === a && y === b)?.[2]
        rows = ratios(backends.figures, backends.sides[a], backends.sides[b], turns)
      }
      rows.sort(byDifference)
      show()
    } catch (error) {
      summary.textContent = `Not compared: ${error.message}.`
    }
  }

  // Showing -------------------------------------------------------------------------
  // Clear differences come first, then the others, the largest first.
  const isClear = ({verdict}) => /faster|slower/.test(verdict)
  const byDifference = (x, y) =>
    isClear(y) - isClear(x) || Math.abs(Math.log(y.value)) - Math.abs(Math.log(x.value))
  const kind = ({verdict}) => (/slower/.test(verdict) ? "worse" : "better")

  // The interval on a log scale from 0.5 to 2, with a notch at the ratio.
  const place = (ratio) => `${Math.min(100, Math.max(0, 50 + 50 * Math.log2(ratio)))}%`
  const drawing = ({value, low, high}) => {
    const made = document.createElement("span")
    made.className = "range"
    const ends = {"--from": low ?? value, "--to": high ?? value, "--at": value}
    for (const [name, ratio] of Object.entries(ends)) made.style.setProperty(name, place(ratio))
    return made
  }

  const rowOf = (row) => {
    const made = document.createElement("tr")
    const link = document.createElement("a")
    link.href = `op/${row.op.replace(/[^\p{L}\p{N}_-]/gu, "-")}.html`
    link.textContent = row.op
    const interval = row.low == null ? "" : `${three(row.low)} to ${three(row.high)}`
    const cells = [link, row.what, `${three(row.value)}×`, interval, drawing(row), row.verdict,
      formatted(row.a, row.unit), formatted(row.b, row.unit)]
    for (const content of cells) made.insertCell().append(content)
    if (isClear(row)) made.cells[5].className = kind(row)
    return made
  }

  // Sorts all rows, not only those that are shown.
  const columns = ["op", "what", "value", "low", "value", "verdict", "a", "b"]
  const order = (rows) => {
    const head = document.querySelector("#ratios th[aria-sort]")
    if (!head) return
    const key = columns[head.cellIndex]
    rows.sort((x, y) => (typeof x[key] === "string" ? x[key].localeCompare(y[key]) : x[key] - y[key]))
    if (head.getAttribute("aria-sort") === "descending") rows.reverse()
  }

  let rows = []
  let all = false

  const show = () => {
    const words = form.filter.value.toLowerCase().split(/\s+/).filter(Boolean)
    const matches = (r) => words.every(w => `${r.op} ${r.what} ${r.verdict}`.toLowerCase().includes(w))
    const kept = rows.filter(r => matches(r) && (!form.clear.checked || isClear(r)))
    order(kept)
    body.replaceChildren(...kept.slice(0, all ? kept.length : FIRST).map(rowOf))
    more.hidden = all || kept.length <= FIRST
    more.textContent = `Show all ${kept.length} rows`
    const count = (word) => kept.filter(r => r.verdict.includes(word)).length
    const mean = Math.exp(kept.reduce((sum, r) => sum + Math.log(r.value), 0) / kept.length)
    summary.textContent = kept.length
      ? `${kept.length} of ${rows.length} comparisons: B is slower in ${count("slower")}, faster in ${count("faster")}; ` +
        `geometric mean ${three(mean)}×.`
      : rows.length ? "No comparison is left: change the filter." : "A and B have no figure in common."
  }

  const runners = [...new Set([...Object.keys(backends.sides), ...backends.turns.map(([a]) => a)])].sort()

  const offer = (wanted = {}) => {
    const ofCommits = form.mode.value === "commits"
    const options = () => ofCommits
      ? [...commits].reverse().map(([hash, subject, tag]) =>
        new Option([hash.slice(0, 8), tag, subject].filter(Boolean).join(" ").slice(0, 60), hash))
      : runners.map(name => new Option(name, name))
    form.a.replaceChildren(...options())
    form.b.replaceChildren(...options())
    if (ofCommits) form.a.selectedIndex = Math.min(1, form.a.length - 1) // the one before
    else { // the framework's own gradient, and the project's
      const own = ["torch_autograd", "torch_custom", "torch_formula", ...runners].filter(n => runners.includes(n))
      form.a.value = own[0] ?? ""; form.b.value = own[1] ?? own[0] ?? ""
    }
    for (const side of ["a", "b"]) {
      if ([...form[side].options].some(o => o.value === wanted[side])) form[side].value = wanted[side]
    }
    compute()
  }

  const keep = () => {
    for (const name of ["mode", "a", "b", "filter"]) gradwatch.keep(name, form[name].value)
    gradwatch.keep("clear", form.clear.checked ? "1" : "")
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

  const asked = gradwatch.choice
  if (asked.get("mode") === "commits" || (!runners.length && commits.length)) form.mode.value = "commits"
  form.filter.value = asked.get("filter") ?? ""
  form.clear.checked = asked.get("clear") === "1"
  offer({a: asked.get("a"), b: asked.get("b")})
}
