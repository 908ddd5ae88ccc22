// Code of every page: what is shown of its tables, and in which order.
"use strict"

const gradwatch = {data: {}}

// What a reader chose is in the address: it can be shared, and comes back with the page.
gradwatch.choice = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "")
gradwatch.keep = (name, value) => {
  value ? gradwatch.choice.set(name, value) : gradwatch.choice.delete(name)
  history.replaceState(null, "", `#${gradwatch.choice}`)
}
addEventListener("hashchange", () => { if (location.hash.includes("=")) location.reload() })

const setUpField = (field) => {
  const given = gradwatch.choice.get(field.dataset.kept)
  if (given !== null && (!field.options || [...field.options].some(o => o.value === given))) {
    field.value = given
    field.dispatchEvent(new Event(field.options ? "change" : "input"))
  }
  field.addEventListener(field.options ? "change" : "input", () => gradwatch.keep(field.dataset.kept, field.value))
}

// Numbers sort as numbers; a cell with data-value sorts by that value.
const keyOf = (row, column) => {
  const cell = row.cells[column]
  const said = cell.dataset.value ?? cell.textContent.trim()
  const number = said === "" ? NaN : Number(said.split(/[\s×]/)[0])
  return {said, number}
}

const compare = (a, b) => {
  if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return a.number - b.number
  if (Number.isNaN(a.number) !== Number.isNaN(b.number)) return Number.isNaN(a.number) ? 1 : -1
  return a.said.localeCompare(b.said)
}

gradwatch.sort = (table, column, descending) => {
  const body = table.tBodies[0]
  const rows = [...body.rows].map(row => ({row, key: keyOf(row, column)}))
  rows.sort((a, b) => (descending ? compare(b.key, a.key) : compare(a.key, b.key)))
  body.append(...rows.map(({row}) => row))
}

gradwatch.setUpSorting = (table) => {
  const heads = [...table.tHead.rows[0].cells]
  heads.forEach((head, column) => {
    const button = document.createElement("button")
    button.type = "button"
    button.append(...head.childNodes)
    head.append(button)
    const order = (descending) => {
      for (const other of heads) other.removeAttribute("aria-sort")
      head.setAttribute("aria-sort", descending ? "descending" : "ascending")
      gradwatch.sort(table, column, descending)
    }
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending"
      order(descending)
      if (table.id) gradwatch.keep(table.id, `${column}${descending ? "-" : ""}`)
    })
    const given = gradwatch.choice.get(table.id) ?? ""
    if (parseInt(given) === column) order(given.endsWith("-"))
  })
}

// Shows the rows that have every word of the field; a group without any is hidden.
gradwatch.setUpFilter = (field) => {
  const table = document.getElementById(field.dataset.filters)
  const shown = document.getElementById(`${table.id}-shown`)
  const rows = [...table.querySelectorAll("tr[data-words]")]
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
    for (const row of rows) {
      const said = row.dataset.words.toLowerCase()
      row.hidden = !words.every(word => said.includes(word))
    }
    for (const body of table.tBodies) body.hidden = !body.querySelector("tr[data-words]:not([hidden])")
    const left = rows.filter(row => !row.hidden).length
    shown.textContent = words.length ? `${left} of ${rows.length} shown. ` : ""
    if (words.length) shown.append(all)
  }
  const write = (words) => { field.value = words; field.dispatchEvent(new Event("input")) }
  const all = document.createElement("button")
  all.append("Show all")
  all.addEventListener("click", () => write(""))
  for (const button of document.querySelectorAll(`[data-words-for="${field.dataset.kept}"]`)) {
    button.hidden = false
    button.addEventListener("click", () => write(button.dataset.value))
  }
  field.parentElement.hidden = false
  field.addEventListener("input", filter)
  table.addEventListener("ordered", filter)
  filter() // a browser may bring back what was typed
}

// Puts the rows of all groups in one order, or each back into its group.
gradwatch.setUpOrder = (select) => {
  const table = document.getElementById(select.dataset.orders)
  const rows = [...table.querySelectorAll("tr[data-words]")]
  const homes = rows.map(row => row.parentElement)
  select.parentElement.hidden = false
  select.addEventListener("change", () => {
    const by = select.value
    table.classList.toggle("ordered", by !== "")
    const ordered = by ? [...rows].sort((a, b) => a.dataset[by] - b.dataset[by]) : rows
    ordered.forEach((row, i) => (by ? homes[0] : homes[i]).append(row))
    table.dispatchEvent(new Event("ordered"))
  })
}

// Each framework's columns fold into one. A table that is wider than the window begins
// folded, until the reader chooses. One that fits scrolls with the page, under its head.
gradwatch.setUpFolding = (button) => {
  const table = document.getElementById(button.dataset.folds)
  const region = table.closest(".scroll")
  const families = [...table.querySelectorAll("th[data-family]")].map(head => ({
    head, size: head.colSpan, open: document.createElement("button"),
    cells: [...table.querySelectorAll(`[data-in="${CSS.escape(head.dataset.family)}"]`)],
  }))
  const groups = [...table.querySelectorAll(".group th")]
  const isOpen = ({open}) => open.getAttribute("aria-expanded") === "true"
  const set = (family, expanded) => {
    family.open.setAttribute("aria-expanded", expanded)
    family.head.colSpan = expanded ? family.size : 1
    for (const cell of [family.head, ...family.cells]) cell.classList.toggle("folded", !expanded)
  }
  const settle = () => {
    const columns = 1 + families.reduce((sum, {head}) => sum + head.colSpan, 0)
    for (const group of groups) group.colSpan = columns
    button.setAttribute("aria-pressed", !families.some(isOpen))
    region.classList.remove("fits")
    region.classList.toggle("fits", region.scrollWidth <= region.clientWidth)
  }
  const setAll = (expanded) => {
    for (const family of families) set(family, expanded)
    settle()
  }
  let chosen = false
  let width = 0
  const fit = () => {
    if (width === innerWidth) return
    width = innerWidth
    if (chosen) return settle()
    setAll(true)
    if (!region.classList.contains("fits")) setAll(false)
  }
  for (const family of families) {
    family.open.type = "button"
    family.open.append(...family.head.childNodes)
    family.head.append(family.open)
    family.open.addEventListener("click", () => {
      chosen = true
      set(family, !isOpen(family))
      settle()
      if (isOpen(family)) family.head.scrollIntoView({block: "nearest", inline: "nearest"})
    })
  }
  button.addEventListener("click", () => {
    chosen = true
    setAll(!families.some(isOpen))
  })
  button.hidden = false
  addEventListener("resize", fit)
  fit()
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("[data-filters]").forEach(gradwatch.setUpFilter)
  document.querySelectorAll("[data-folds]").forEach(gradwatch.setUpFolding)
  document.querySelectorAll("[data-orders]").forEach(gradwatch.setUpOrder)
  document.querySelectorAll("table.sortable").forEach(gradwatch.setUpSorting)
  document.querySelectorAll("[data-kept]").forEach(setUpField)
})
