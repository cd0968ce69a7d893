/** Runs a screen on a terminal until a key or a signal ends it. */
import { emitKeypressEvents } from 'node:readline'
import type { Key, Screen } from './screen.js'

const ALTERNATE = { on: '\x1b[?1049h', off: '\x1b[?1049l' }
const CURSOR = { hide: '\x1b[?25l', show: '\x1b[?25h' }
const HOME = '\x1b[H'
const CLEAR_LINE = '\x1b[K'

/** The size of a terminal that does not tell it. */
const SIZE = { columns: 80, rows: 24 }

export interface ScreenTerminal {
  readonly stdin: NodeJS.ReadStream
  readonly stdout: NodeJS.WriteStream
}

export interface RunningScreen {
  /** Shows what has changed. */
  draw(): void
  /** Resolves when the user has quit, or a signal has come. */
  readonly ended: Promise<void>
  /** Gives the terminal back. */
  close(): void
}

export function runScreen(screen: Screen, { stdin, stdout }: ScreenTerminal): RunningScreen {
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
