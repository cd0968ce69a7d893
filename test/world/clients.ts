/** Clients of every kind, as they come to the instances. */
import type { Booking, Ending } from './instance.js'
import type { ClientPlan } from './scenario.js'

/** ms after a rejection until a greedy client asks again: often enough that room is used at once, seldom enough for a quick run. */
const AGAIN = 100
/** How often an obedient client comes back. */
const MOST_VISITS = 20

/** How clients reach the system. */
export interface Door {
  now(): number
  chance(): number
  at(due: number, run: () => void): void
  /** A name that nobody has had. */
  newcomer(): string
  /** @returns hangs up */
  ask(client: ClientPlan, back: Back | undefined, ended: (ending: Ending) => void): () => void
  /** ms of the world's clock from which on clients come, and until when. */
  readonly from: number
  readonly until: number
}

/** A client that comes back when it was told to, or will. */
export interface Back {
  readonly booking: Booking | undefined
  readonly visitor: string
}

export function startClient(client: ClientPlan, door: Door): void {
  const { kind, every, depth, patience } = client
  const start = door.from + client.from
  const end = Math.min(door.until, door.from + client.to)
  const when = (due: number, run: () => void): void => {
    if (due < end) door.at(due, run)
  }
  const byChance = (): number => -every * Math.log(1 - door.chance())

  function stay(): void {
    door.ask(client, undefined, ({ how }) => {
      when(door.now() + (how === 'done' ? 0 : AGAIN), stay)
    })
  }

  function comeAndGo(): void {
    let isOver = false
    const hangUp = door.ask(client, undefined, () => {
      isOver = true
    })
    door.at(door.now() - patience * Math.log(1 - door.chance()), () => {
      if (!isOver) hangUp()
    })
    when(door.now() + byChance(), comeAndGo)
  }

  function visit(back: Back | undefined, visits: number): void {
    const { visitor = door.newcomer() } = back ?? {}
    door.ask(client, back ?? { booking: undefined, visitor }, ({ how, retryAfterMs, booking }) => {
      if (how !== 'rejected' || retryAfterMs === undefined || visits === MOST_VISITS) return
      when(door.now() + Math.ceil(retryAfterMs) + 1, () => visit({ booking, visitor }, visits + 1))
    })
  }

  function comeAndObey(): void {
    visit(undefined, 1)
    when(door.now() + byChance(), comeAndObey)
  }

  function come(): void {
    door.ask(client, undefined, () => undefined)
    when(door.now() + (kind === 'poller' ? every : byChance()), come)
  }

  function crowd(): void {
    for (let at = 0; at < depth; at += 1) visit(undefined, 1)
  }

  if (kind === 'greedy') for (let at = 0; at < depth; at += 1) when(start, stay)
  else if (kind === 'crowd') when(start, crowd)
  else when(start, { impatient: comeAndGo, obedient: comeAndObey, poller: come, slow: come }[kind])
}
