/** Server-sent events read with fetch, since EventSource cannot send the token. Reconnects, with growing pauses. */

/** How often the server is asked to tell, in ms. */
export const INTERVAL = 250
/** Silence after which the connection counts as lost, in ms. */
const SILENCE = 6_000
/** Until the next try, in ms: the first time, and at most. */
const BACKOFF = { least: 500, most: 10_000 }
const TOKEN = 'shaper.token'

/** Ends the pause before the next try. */
let wake = () => {}
addEventListener('online', () => wake())

/** Of this tab only; gone with it. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? undefined,
  set: value => sessionStorage.setItem(TOKEN, value),
  clear: () => sessionStorage.removeItem(TOKEN),
}

/** Same origin, relative to the page, with the token where there is one. */
export function ask(path, options = {}) {
  const value = token.get()
  const headers = value === undefined ? {} : { authorization: `Bearer ${value}` }
  return fetch(path, { ...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' })
}

/** Yields the data of the events called `name` out of a stream of bytes (HTML Living Standard, 9.2.6). */
async function* events(body, name) {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  let event = ''
  let data = []
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?=[^\n])/)
    rest = lines.pop()
    for (const line of lines) {
      if (line === '') {
        if (event === name && data.length > 0) yield data.join('\n')
        event = ''
        data = []
        continue
      }
      const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line)
      if (field === 'event') event = text
      else if (field === 'data') data.push(text)
    }
  }
}

/**
 * Calls `on.snapshot(snapshot)` for each; `on.lost(pause)` when it will try again after that many ms; and
 * `on.refused(hadToken)` where a token is needed: then nothing more happens until `connect` is called again.
 */
export function connect(on) {
  let pause = BACKOFF.least

  const attempt = async () => {
    const controller = new AbortController()
    const { signal } = controller
    let watch
    const alive = () => {
      clearTimeout(watch)
      watch = setTimeout(() => controller.abort(), SILENCE)
    }
    try {
      alive()
      const answer = await ask(`events?interval=${INTERVAL}`, { signal })
      if (answer.status === 401) return false
      if (!answer.ok) throw new Error(`${answer.status}`)
      for await (const data of events(answer.body, 'snapshot')) {
        alive()
        const snapshot = JSON.parse(data)
        pause = BACKOFF.least
        try {
          on.snapshot(snapshot)
        } catch (error) {
          // A fault of the page, not of the connection.
          reportError(error)
        }
      }
    } catch {
      // Lost, silent or unreadable: all the same here.
    } finally {
      clearTimeout(watch)
      controller.abort()
    }
    return true
  }

  const run = async () => {
    while (await attempt()) {
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
