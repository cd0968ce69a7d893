/** Lays out lists in a terminal: which rows and which columns fit. */
import { inColumns, widthOf } from '../text.js'
import type { Column, Section, SectionName } from './sections.js'

export interface Size {
  readonly columns: number
  readonly rows: number
}

interface Sort {
  readonly column: string
  readonly order: 'falling' | 'rising'
}

export interface TopView {
  /** The list that the keys act on. It gets the most rows. */
  readonly focus: SectionName
  readonly filter: string
  readonly sort: Partial<Record<SectionName, Sort>>
  /** Rows that are scrolled out at the top. */
  readonly scroll: Partial<Record<SectionName, number>>
}

export interface Shown {
  readonly name: SectionName
  readonly lines: readonly string[]
  /** The titles of the columns that there is room for. */
  readonly columns: readonly string[]
  /** How many rows there is room for, how many are scrolled out, and how many there are. */
  readonly visible: number
  readonly scrolled: number
  readonly total: number
}

/** Narrower terminals get the short titles. */
const NARROW = 100
/** Below it, routes and servers are shown only while the keys act on them. */
const LOW = 16
const GAP = 2
/** The least columns of the name of a row: a quarter of the terminal, but so many at least. */
const LEAST_NAME = 8

export function arrange(sections: readonly Section[], view: TopView, { columns, rows }: Size): Shown[] {
  const found = sections.map(section => sorted(filtered(section, view.filter), view.sort[section.name]))
  const shown = found.filter(({ name }) => !/^(?:route|server)$/.test(name) || view.focus === name || rows >= LOW)
  const shares = shareOut(shown, view.focus, rows)
  return shown.map((section, place) => {
    const visible = shares[place]!
    const total = section.rows.length
    const scrolled = Math.max(0, Math.min(view.scroll[section.name] ?? 0, total - visible))
    const part = visible < total ? ` ${scrolled + 1}-${scrolled + visible}/${total}` : ''
    const table = tableOf(section, view, { columns, part })
    const lines = [table.titles, ...table.rows.slice(scrolled, scrolled + visible)]
    return { name: section.name, lines, columns: table.columns, visible, scrolled, total }
  })
}

function filtered(section: Section, filter: string): Section {
  if (filter === '') return section
  const wanted = filter.toLowerCase()
  const texts = section.columns.flatMap(({ kind, title }, place) => (kind === 'text' && title !== '' ? [place] : []))
  const rows = section.rows.filter(row => texts.some(place => String(row[place]!.value).toLowerCase().includes(wanted)))
  return { ...section, rows }
}

function sorted(section: Section, sort: Sort | undefined): Section {
  const place = section.columns.findIndex(({ title }) => title === sort?.column)
  if (place < 0) return section
  const sign = sort!.order === 'rising' ? 1 : -1
  const rows = section.rows.toSorted((a, b) => sign * compare(a[place]!.value, b[place]!.value))
  return { ...section, rows }
}

function compare(a: number | string, b: number | string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

/** Rows of each list besides its titles. The others get a quarter each at most, the list in focus what they leave. */
function shareOut(sections: readonly Section[], focus: SectionName, rows: number): number[] {
  const shares = sections.map(() => 0)
  let left = rows - sections.length
  const most = Math.max(3, Math.floor(rows / 4))
  const give = (limit: (section: Section) => number): void => {
    for (let isGiven = true; isGiven && left > 0; ) {
      isGiven = false
      for (const [place, section] of sections.entries()) {
        if (left === 0 || shares[place]! >= Math.min(section.rows.length, limit(section))) continue
        shares[place]! += 1
        left -= 1
        isGiven = true
      }
    }
  }
  give(() => most)
  give(({ name }) => (name === focus ? Infinity : 0))
  give(() => Infinity)
  return shares
}

function tableOf(section: Section, { sort }: TopView, { columns, part }: { columns: number; part: string }) {
  const title = ({ title, short }: Column): string => (columns < NARROW && short !== undefined ? short : title)
  const ordered = sort[section.name]
  const mark = (column: Column): string =>
    ordered?.column !== column.title || column.title === '' ? '' : ordered.order === 'rising' ? '^' : 'v'
  const heads = section.columns.map((column, place) => title(column) + mark(column) + (place === 0 ? part : ''))
  const places = fitting(section, heads, columns)
  const widths = widthsOf(section, heads, { places, columns })
  const line = (cells: readonly string[]): string =>
    places
      .map((place, index) => inColumns(cells[place]!, widths[index]!, alignOf(section.columns[place]!)))
      .join(' '.repeat(GAP))
      .trimEnd()
  return {
    columns: places.map(place => section.columns[place]!.title).filter(each => each !== ''),
    titles: line(heads),
    rows: section.rows.map(row => line(row.map(({ text }) => text))),
  }
}

const alignOf = ({ kind }: Column): 'left' | 'right' => (kind === 'text' ? 'left' : 'right')

function widest({ rows }: Section, heads: readonly string[], place: number): number {
  return Math.max(widthOf(heads[place]!), ...rows.map(row => widthOf(row[place]!.text)))
}

/** The places of the columns that there is room for. A column without any text is left out. */
function fitting(section: Section, heads: readonly string[], columns: number): number[] {
  const { columns: all, rows } = section
  let places = all.flatMap((_, place) => (place === 0 || rows.some(row => row[place]!.text !== '') ? [place] : []))
  const name = Math.min(widest(section, heads, 0), Math.max(LEAST_NAME, Math.floor(columns / 4)))
  const least = (): number =>
    places.reduce((sum, place) => sum + GAP + (place === 0 ? name : widest(section, heads, place)), -GAP)
  while (least() > columns) {
    const worst = places.reduce((a, b) => (all[b]!.drop >= all[a]!.drop ? b : a))
    if (all[worst]!.drop === 0) break
    places = places.filter(place => place !== worst)
  }
  return places
}

/** The first column gives way. */
function widthsOf(
  section: Section,
  heads: readonly string[],
  { places, columns }: { places: readonly number[]; columns: number },
): number[] {
  const widths = places.map(place => widest(section, heads, place))
  const over = widths.reduce((sum, width) => sum + width + GAP, -GAP) - columns
  if (over > 0) widths[0] = Math.max(LEAST_NAME, widths[0]! - over)
  return widths
}
