/** Clients that send a request after each answer, and the outcomes of all requests. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, errors } from 'undici'

/** `cut`: the connection broke before the answer. `unsent`: there was no connection. `hung`: no answer in time. */
export type Outcome = 'ok' | 'rejected' | 'unavailable' | 'left' | 'cut' | 'unsent' | 'hung' | 'other'

/** The pause after a rejection, in ms. */
const AGAIN = 25

export interface LoadOptions {
  /** A request without an answer for this long counts as hung, in ms. */
  readonly patience?: number
  /** After how many ms a request hangs up; undefined: never. Called for each request. */
  leaves?(): number | undefined
}

let last = 0

/** The current time in ms of the clock that all processes share. */
export function now(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

/** `/CLIENT/NUMBER`. */
export function clientOf(path: string): string {
  return path.split('/', 2)[1]!
}

export class Load {
  /** By path. */
  readonly outcomes = new Map<string, Outcome>()
  /** The times of the answers with an outcome. */
  readonly answers: { at: number; outcome: Outcome }[] = []
  /** When requests came and ended, in ms, but for those that were rejected. Infinity: there is no answer yet. */
  readonly stays = new Set<{ readonly from: number; to: number }>()
  readonly #options: LoadOptions
  readonly #loops: Promise<void>[] = []
  #sent = 0
  #stopped = false

  constructor(options: LoadOptions = {}) {
    this.#options = options
  }

  get sent(): number {
    return this.#sent
  }

  count(outcome: Outcome): number {
    return this.answers.filter(answer => answer.outcome === outcome).length
  }

  /** Opens connections of one client to one instance, until the instance is gone or `stop` is called. */
  add(url: string, client: string, connections: number): void {
    for (let at = 0; at < connections; at += 1) this.#loops.push(this.#loop(url, client))
  }

  /** Opens connections of every client to every instance. */
  addAll(urls: readonly string[], clients: readonly string[], connections: number): void {
    for (const client of clients) for (const url of urls) this.add(url, client, connections)
  }

  /** Stops sending. Resolves when every request has ended. */
  async stop(): Promise<void> {
    this.#stopped = true
    await Promise.all(this.#loops)
  }

  async #loop(url: string, client: string): Promise<void> {
    const { patience = 15_000 } = this.#options
    const connection = new Client(url, { headersTimeout: patience, bodyTimeout: patience })
    while (!this.#stopped) {
      const outcome = await this.ask(connection, client)
      if (outcome === 'unsent') break
      if (outcome !== 'ok' && outcome !== 'left') await sleep(AGAIN)
    }
    await connection.destroy()
  }

  /** One request. */
  async ask(connection: Client, client: string): Promise<Outcome> {
    last += 1
    const path = `/${client}/${last}`
    this.#sent += 1
    const stay = { from: now(), to: Infinity }
    this.stays.add(stay)
    const controller = new AbortController()
    const leaves = this.#options.leaves?.()
    const leaving = leaves === undefined ? undefined : setTimeout(() => controller.abort(), leaves)
    const outcome = await connection
      .request({ path, method: 'GET', headers: { 'x-client': client }, signal: controller.signal })
      .then(async ({ statusCode, body }) => {
        await body.dump()
        return outcomeOf(statusCode)
      })
      .catch((error: Error) => (controller.signal.aborted ? 'left' : failureOf(error)))
    clearTimeout(leaving)
    this.outcomes.set(path, outcome)
    this.answers.push({ at: now(), outcome })
    stay.to = now()
    if (outcome === 'rejected') this.stays.delete(stay)
    return outcome
  }
}

function outcomeOf(status: number): Outcome {
  return status === 200 ? 'ok' : status === 429 ? 'rejected' : status === 503 ? 'unavailable' : 'other'
}

function failureOf(error: Error): Outcome {
  if (error instanceof errors.HeadersTimeoutError || error instanceof errors.BodyTimeoutError) return 'hung'
  return (error as NodeJS.ErrnoException).code === 'ECONNREFUSED' ? 'unsent' : 'cut'
}
