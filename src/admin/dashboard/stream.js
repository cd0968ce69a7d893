/** Reads server-sent events with fetch, because EventSource cannot send the token. Reconnects with growing pauses. */

/** Which snapshots to ask for: of this program, of all instances of its store, or of one of them by its name. */
export const scope = {
  isAll: false,
  instance: undefined,
  /** The key to watch besides: { bucket, key }. Undefined: none. */
  watched: undefined,
  /** Other processes show themselves on the store once a second. */
  isOfOthers: false,
  /** The interval of snapshots to ask the server for, in ms. */
  get interval() {
    return this.isOfOthers ? 1_000 : 250
  },
  get query() {
    const one = this.instance === undefined ? '' : `&instance=${encodeURIComponent(this.instance)}`
    const { bucket, key } = this.watched ?? {}
    const watched = key === undefined ? '' : `&bucket=${encodeURIComponent(bucket)}&key=${encodeURIComponent(key)}`
    return `interval=${this.interval}${this.isAll ? '&all' : one}${watched}`
  },
  watch(watched) {
    if (watched === undefined && this.watched === undefined) return
    this.watched = watched
    again()
  },
  set({ isAll = false, instance, isOfOthers = false }) {
    Object.assign(this, { isAll, instance, isOfOthers })
    again()
  },
}
let again = () => {}
/** After this much silence the connection counts as lost, in ms. */
const SILENCE = 6_000
/** The first and the longest pause before the next try, in ms. */
const BACKOFF = { least: 500, most: 10_000 }
const TOKEN = 'shaper.token'
let wake = () => {}
addEventListener('online', () => wake())

/** The token, kept for the life of the tab. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? undefined,
  set: value => sessionStorage.setItem(TOKEN, value),
  clear: () => sessionStorage.removeItem(TOKEN),
}

/** Fetches a path relative to the page, with the token if there is one. */
function ask(path, options = {}) {
  const value = token.get()
  const headers = { ...options.headers, ...(value !== undefined && { authorization: `Bearer ${value}` }) }
  return fetch(path, { ...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' })
}

/** Asks for JSON. `value` is the answer. Without one `fault` says why, and `detail` what the server says of it. */
export async function load(path, options) {
  try {
    const answer = await ask(path, options)
    if (answer.ok) return { value: await answer.json() }
    const { detail = '' } = await answer.json().catch(() => ({}))
    return { fault: `status ${answer.status}`, detail: `${answer.status}: ${detail}` }
  } catch {
    return { fault: 'no answer', detail: 'No answer' }
  }
}

/** Yields the data of the events called `name` out of a stream of bytes (HTML Living Standard, 9.2.6). */
async function* events(body, name) {
  let event = ''
  let data = []
  for await (const line of linesOf(body)) {
    if (line !== '') {
      const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line)
      if (field === 'event') event = text
      else if (field === 'data') data.push(text)
      continue
    }
    if (event === name && data.length > 0) yield data.join('\n')
    event = ''
    data = []
  }
}

async function* linesOf(body) {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?=[^\n])/)
    rest = lines.pop()
    yield* lines
  }
}

/**
 * Connects to the server and stays connected.
 *
 * Calls `on.snapshot(snapshot)` for each snapshot, `on.lost(pause)` before it tries again in `pause` ms, and
 * `on.refused(hadToken)` when the server wants a token. After that nothing happens until `connect` is called again.
 */
export function connect(on) {
  let pause = BACKOFF.least

  const deliver = snapshot => {
    pause = BACKOFF.least
    try {
      on.snapshot(snapshot)
    } catch (error) {
      // An error of the page, not of the connection.
      reportError(error)
    }
  }

  const attempt = async () => {
    const controller = new AbortController()
    const { signal } = controller
    const asked = scope.query
    again = () => {
      controller.abort()
      wake()
    }
    let watch
    const alive = () => {
      clearTimeout(watch)
      watch = setTimeout(() => controller.abort(), SILENCE)
    }
    try {
      alive()
      const answer = await ask(`events?${asked}`, { signal })
      if (answer.status === 401) return false
      if (!answer.ok) throw new Error(`${answer.status}`)
      for await (const data of events(answer.body, 'snapshot')) {
        alive()
        if (asked !== scope.query) break
        deliver(JSON.parse(data))
      }
    } catch {
      // Lost, silent or unreadable: `run` tries again.
    } finally {
      clearTimeout(watch)
      controller.abort()
    }
    return true
  }

  const run = async () => {
    for (;;) {
      const asked = scope.query
      if (!(await attempt())) break
      if (asked !== scope.query) continue
      const length = pause * (0.8 + 0.4 * Math.random())
      on.lost(length)
      await new Promise(resolve => {
        wake = resolve
        setTimeout(resolve, length)
      })
      pause = Math.min(BACKOFF.most, pause * 2)
    }
    const hadToken = token.get() !== undefined
    token.clear()
    on.refused(hadToken)
  }
  run()
}
