/** What `shaper top` shows on a terminal, and what its keys do. */
import { emitKeypressEvents } from 'node:readline'
import type { Snapshot } from '../../admin/snapshot/snapshot.js'
import type { Terminal } from '../command.js'
import { cut, widthOf } from '../text.js'
import { arrange, type Shown, type Size, type TopView } from './layout.js'
import { type Section, type SectionName, sectionsOf, summaryOf, troublesOf } from './sections.js'

interface Key {
  readonly name?: string | undefined
  readonly sequence?: string | undefined
  readonly ctrl?: boolean | undefined
  readonly shift?: boolean | undefined
}

/** Below so many rows there is one line about everything, else there are two. */
const LOW = 20
/** Lines about what is wrong. In a low terminal there is one. */
const MOST_TROUBLES = 3
/** With so many rows there is an empty line above each list. */
const HIGH = 30
const LONGEST_FILTER = 80
const HELP = ['q quit', '/ filter', 'Tab list', '←→ sort', 'r reverse', '↑↓ PgUp PgDn scroll']
const BOLD = '\x1b[1m'
const ALARM = '\x1b[1;31m'
const REVERSE = '\x1b[7m'
const PLAIN = '\x1b[0m'

export class Screen {
  #view: TopView = { focus: 'key', filter: '', sort: {}, scroll: {} }
  #isTyping = false
  #sections: readonly Section[] = []
  #summary: readonly string[] = []
  #troubles: readonly string[] = []
  #shown: readonly Shown[] = []
  #lost: string | undefined

  update(now: Snapshot, before: Snapshot | undefined): void {
    this.#sections = sectionsOf(now, before)
    this.#summary = summaryOf(now)
    this.#troubles = troublesOf(now)
    this.#lost = undefined
  }

  lost(why: string): void {
    this.#lost = why
  }

  press({ name, sequence = '', ctrl = false, shift = false }: Key): 'on' | 'quit' {
    if (ctrl) return name === 'c' ? 'quit' : 'on'
    if (this.#isTyping) this.#type(name, sequence)
    else if (sequence === 'q') return 'quit'
    else this.#act(name === 'tab' && shift ? 'back' : (name ?? sequence))
    return 'on'
  }

  #act(key: string): void {
    switch (key) {
      case '/':
        this.#isTyping = true
        break
      case 'escape':
        this.#view = { ...this.#view, filter: '', sort: {}, scroll: {} }
        break
      case 'tab':
        return this.#focusNext(1)
      case 'back':
        return this.#focusNext(-1)
      case 'left':
        return this.#sortNext(-1)
      case 'right':
        return this.#sortNext(1)
      case 'r':
        return this.#reverse()
      default:
        this.#scroll(key)
    }
  }

  /** One line for each row of the terminal at most. */
  draw({ columns, rows }: Size): string[] {
    const head = rows < LOW ? this.#head(columns, 1, 1) : this.#head(columns, 2, MOST_TROUBLES)
    const wanted = this.#sections.some(({ name }) => name === this.#view.focus)
    const view = wanted ? this.#view : { ...this.#view, focus: this.#sections.at(-1)?.name ?? 'key' }
    const gap = rows < HIGH ? [] : ['']
    const room = Math.max(0, rows - head.length - 1)
    this.#shown = arrange(this.#sections, view, { columns, rows: room - gap.length * this.#sections.length })
    const body = this.#shown.flatMap(({ name, lines: [titles = '', ...lines] }) => {
      return [...gap, `${name === view.focus ? REVERSE : BOLD}${titles}${PLAIN}`, ...lines]
    })
    const all = [...head, ...body.slice(0, room)]
    while (all.length < rows - 1) all.push('')
    return [...all, this.#foot(columns)].slice(0, rows)
  }

  #head(columns: number, most: number, mostTroubles: number): string[] {
    if (this.#lost !== undefined) return [`${REVERSE}${cut(this.#lost, columns)}${PLAIN}`]
    const lines: string[] = []
    for (const part of this.#summary) {
      const last = lines.at(-1)
      if (last !== undefined && widthOf(last) + 2 + widthOf(part) <= columns)
        lines[lines.length - 1] = `${last}  ${part}`
      else if (lines.length < most) lines.push(cut(part, columns))
    }
    const troubles = this.#troubles.slice(0, mostTroubles).map(line => `${ALARM}${cut(line, columns)}${PLAIN}`)
    return [...troubles, ...lines]
  }

  #foot(columns: number): string {
    const { filter } = this.#view
    if (this.#isTyping) return `${BOLD}${cut(`filter: ${filter}_`, columns)}${PLAIN}`
    const parts = filter === '' ? HELP : [`filter: ${filter} (Esc clears it)`, ...HELP]
    let line = ''
    for (const part of parts) if (widthOf(line) + 2 + widthOf(part) <= columns + 2) line += `${line && '  '}${part}`
    return `${BOLD}${cut(line, columns)}${PLAIN}`
  }

  #type(name: string | undefined, sequence: string): void {
    const { filter } = this.#view
    if (name === 'return' || name === 'enter') this.#isTyping = false
    else if (name === 'escape') {
      this.#isTyping = false
      this.#filter('')
    } else if (name === 'backspace') this.#filter([...filter].slice(0, -1).join(''))
    else if (/^[\p{L}\p{N}\p{P}\p{S} ]+$/u.test(sequence)) this.#filter((filter + sequence).slice(0, LONGEST_FILTER))
  }

  #filter(filter: string): void {
    this.#view = { ...this.#view, filter, scroll: {} }
  }

  #focusNext(by: 1 | -1): void {
    const names = this.#sections.map(({ name }) => name)
    if (names.length === 0) return
    const at = names.indexOf(this.#view.focus)
    this.#view = { ...this.#view, focus: names[(Math.max(0, at) + by + names.length) % names.length]! }
  }

  #sortNext(by: 1 | -1): void {
    const { focus, sort } = this.#view
    const columns = this.#shown.find(({ name }) => name === focus)?.columns ?? []
    const at = columns.indexOf(sort[focus]?.column ?? '')
    const next = columns[at < 0 ? 0 : (at + by + columns.length) % columns.length]
    if (next === undefined) return
    const section = this.#sections.find(({ name }) => name === focus)!
    const kind = section.columns.find(({ title }) => title === next)!.kind
    this.#setSort(focus, { column: next, order: kind === 'text' ? 'rising' : 'falling' })
  }

  #reverse(): void {
    const { focus, sort } = this.#view
    const own = sort[focus]
    if (own !== undefined) this.#setSort(focus, { ...own, order: own.order === 'rising' ? 'falling' : 'rising' })
  }

  #setSort(focus: SectionName, sort: NonNullable<TopView['sort'][SectionName]>): void {
    this.#view = { ...this.#view, sort: { ...this.#view.sort, [focus]: sort }, scroll: {} }
  }

  #scroll(key: string): void {
    const { focus, scroll } = this.#view
    const shown = this.#shown.find(each => each.name === focus)
    if (shown === undefined) return
    const { visible, scrolled, total } = shown
    const page = Math.max(1, visible - 1)
    const to = {
      up: scrolled - 1,
      down: scrolled + 1,
      pageup: scrolled - page,
      pagedown: scrolled + page,
      home: 0,
      end: total,
    }
    const next = to[key as keyof typeof to]
    if (next === undefined) return
    this.#view = { ...this.#view, scroll: { ...scroll, [focus]: Math.max(0, Math.min(next, total - visible)) } }
  }
}

const ALTERNATE = { on: '\x1b[?1049h', off: '\x1b[?1049l' }
const CURSOR = { hide: '\x1b[?25l', show: '\x1b[?25h' }
const HOME = '\x1b[H'
const CLEAR_LINE = '\x1b[K'
/** The size of a terminal that does not tell it. */
const SIZE = { columns: 80, rows: 24 }

interface RunningScreen {
  draw(): void
  /** Resolves when the user has quit, or a signal has come. */
  readonly ended: Promise<void>
  close(): void
}

export function runScreen(screen: Screen, { stdin, stdout }: Pick<Terminal, 'stdin' | 'stdout'>): RunningScreen {
  let end = (): void => undefined
  const ended = new Promise<void>(resolve => {
    end = resolve
  })
  const draw = (): void => {
    const { columns, rows } = stdout
    const lines = screen.draw({ columns: columns || SIZE.columns, rows: rows || SIZE.rows })
    // Each line is cleared behind its text, so nothing flickers. A line feed behind the last row would scroll.
    stdout.write(HOME + lines.map(line => line + CLEAR_LINE).join('\r\n'))
  }
  const pressed = (_: string | undefined, key: Key): void => {
    if (screen.press(key) === 'quit') end()
    else draw()
  }
  emitKeypressEvents(stdin)
  stdin.setRawMode(true)
  stdin.on('keypress', pressed)
  stdin.once('end', end)
  stdin.resume()
  stdout.on('resize', draw)
  const signals = ['SIGTERM', 'SIGHUP', 'SIGINT'] as const
  for (const signal of signals) process.once(signal, end)
  stdout.write(ALTERNATE.on + CURSOR.hide)
  return {
    draw,
    ended,
    close() {
      for (const signal of signals) process.off(signal, end)
      stdout.off('resize', draw)
      stdin.off('keypress', pressed)
      stdin.off('end', end)
      stdin.setRawMode(false)
      stdin.pause()
      stdout.write(CURSOR.show + ALTERNATE.off)
    },
  }
}
