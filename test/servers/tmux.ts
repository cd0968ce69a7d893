/** A terminal of a given size, in a tmux server of its own. */
import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { promisify } from 'node:util'
import { until } from './redis.js'

const INSTALL = 'apt-get install tmux (Debian), dnf install tmux (Fedora), brew install tmux (macOS)'

const run = promisify(execFile)

export interface Terminal {
  /** The text of the screen, one string for each row, without the spaces at their ends. */
  rows(): Promise<string[]>
  /** The rows with their escape sequences. */
  styled(): Promise<string[]>
  /** Presses keys by their names in tmux, e.g. `Tab`, `Up`, `q`. */
  press(...keys: string[]): Promise<void>
  resize(columns: number, rows: number): Promise<void>
  /** Resolves once the screen shows it. */
  shows(what: RegExp): Promise<void>
}

/** Runs a command in a terminal until the test ends. After the command it shows its exit status as `[status 0]`. */
export async function openTerminal(
  t: { teardown(run: () => unknown): unknown },
  command: readonly string[],
  { columns, rows }: { columns: number; rows: number },
): Promise<Terminal> {
  const socket = `shaper-${randomUUID()}`
  const tmux = async (...args: string[]): Promise<string> => {
    try {
      return (await run('tmux', ['-L', socket, '-f', '/dev/null', ...args])).stdout
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT')
        throw new Error(`tmux is needed: ${INSTALL}`, { cause: error })
      throw error
    }
  }
  const quoted = command.map(each => `'${each.replaceAll("'", "'\\''")}'`).join(' ')
  t.teardown(() => tmux('kill-server').catch(() => undefined))
  const size = ['-x', `${columns}`, '-y', `${rows}`]
  await tmux('new-session', '-d', ...size, `${quoted}; echo "[status $?]"; exec sleep 600`)
  await tmux('set-option', '-g', 'status', 'off')
  await tmux('set-option', '-s', 'escape-time', '0')
  await tmux('resize-window', ...size)
  const capture = async (...more: string[]): Promise<string[]> =>
    (await tmux('capture-pane', '-p', ...more)).replace(/\n$/, '').split('\n')
  const terminal: Terminal = {
    rows: () => capture(),
    styled: () => capture('-e'),
    press: async (...keys) => void (await tmux('send-keys', ...keys)),
    resize: async (width, height) => void (await tmux('resize-window', '-x', `${width}`, '-y', `${height}`)),
    async shows(what) {
      try {
        await until(`the terminal shows ${what}`, async () => what.test((await capture()).join('\n')))
      } catch (error) {
        throw new Error(`${(error as Error).message}; it shows\n${(await capture()).join('\n')}`)
      }
    },
  }
  return terminal
}
