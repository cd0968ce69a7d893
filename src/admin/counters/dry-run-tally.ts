/** Counts what dry runs would have done, by key and by class of user agent. */
import { AGENT_CLASSES, type AgentClass, classifyAgent } from '../../http/agent-class.js'
import type { Decision, RequestRecord } from '../../proxy/observe/observer.js'
import type { DryRunSnapshot } from '../snapshot/snapshot.js'

/** How many keys to count, and how many to list. */
const MOST_KEYS = 2_000
const LISTED = 50

interface Hit {
  readonly route: string
  readonly bucket: string
  readonly key: string
  readonly agent: AgentClass
  wouldReject: number
  wouldDelay: number
  longestWait: number
}

export class DryRunTally {
  readonly #since: number
  readonly #hits = new Map<string, Hit>()
  readonly #agents = Object.fromEntries(
    AGENT_CLASSES.map(name => [name, { would_reject: 0, would_delay: 0 }]),
  ) as DryRunSnapshot['agents'] & Record<AgentClass, Record<Decision, number>>

  /** @param since ms since 1970 */
  constructor(since: number) {
    this.#since = since
  }

  add(request: RequestRecord, decision: Decision, bucket: string, wait: number): void {
    const agent = classifyAgent(request.header('user-agent'))
    this.#agents[agent][decision] += 1
    const { route, stack, keys } = request
    const key =
      keys[
        Math.max(
          0,
          stack.findIndex(({ limits }) => limits.name === bucket),
        )
      ] ?? ''
    const id = JSON.stringify([route, bucket, key, agent])
    let hit = this.#hits.get(id)
    if (hit === undefined) {
      if (this.#hits.size >= MOST_KEYS) this.#forget()
      hit = { route, bucket, key, agent, wouldReject: 0, wouldDelay: 0, longestWait: 0 }
      this.#hits.set(id, hit)
    }
    if (decision === 'would_reject') hit.wouldReject += 1
    else hit.wouldDelay += 1
    hit.longestWait = Math.max(hit.longestWait, wait)
  }

  snapshot(): DryRunSnapshot {
    return { since: this.#since, keys: this.#ranked().slice(0, LISTED), agents: structuredClone(this.#agents) }
  }

  /** Drops the half that was hit least, so that a flood of new keys does not push out those hit most. */
  #forget(): void {
    const ranked = this.#ranked()
    this.#hits.clear()
    for (const hit of ranked.slice(0, MOST_KEYS / 2)) {
      this.#hits.set(JSON.stringify([hit.route, hit.bucket, hit.key, hit.agent]), hit)
    }
  }

  #ranked(): Hit[] {
    return [...this.#hits.values()].sort((a, b) => b.wouldReject - a.wouldReject || b.wouldDelay - a.wouldDelay)
  }
}
