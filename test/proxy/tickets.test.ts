import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { SharedTicketKey, Tickets } from '../../src/proxy/features/tickets.js'
import type { Board } from '../../src/sharing/board.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'

const HOLDER = { route: 'api', client: '192.0.2.1', cost: { cost: 1 } }
const [FIRST, SECOND] = ['a'.repeat(32), 'b'.repeat(32)] as const

function configured(...keys: string[]): Tickets {
  const tickets = new Tickets()
  tickets.configure(keys)
  return tickets
}

t.test('a ticket of another process is accepted with the same key only', async t => {
  const ticket = configured(FIRST).issue(7, HOLDER)
  t.equal(configured(FIRST).read(ticket, HOLDER), 7)
  t.equal(configured(SECOND).read(ticket, HOLDER), undefined)
  t.equal(new Tickets().read(ticket, HOLDER), undefined)
})

t.test('keys are rotated: the first one signs, all are accepted', async t => {
  const [before, during, after] = [configured(FIRST), configured(SECOND, FIRST), configured(SECOND)]
  t.equal(during.read(before.issue(7, HOLDER), HOLDER), 7)
  t.equal(after.read(during.issue(8, HOLDER), HOLDER), 8)
  t.equal(after.read(before.issue(7, HOLDER), HOLDER), undefined)
})

t.test('without keys in the configuration instances agree on one', async t => {
  const clock = createVirtualClock()
  let store: { board?: Board } = createMemoryStore({ clock })
  const create = (): { tickets: Tickets; shared: SharedTicketKey } => {
    const tickets = new Tickets()
    const shared = new SharedTicketKey({
      ...{ clock, tickets, isUsed: () => true },
      store: {
        get board() {
          return store.board
        },
      },
    })
    return { tickets, shared }
  }
  const [one, other] = [create(), create()]
  const early = other.tickets.issue(6, HOLDER)
  for (const { shared } of [one, other]) await shared.join()
  t.equal(other.tickets.read(one.tickets.issue(7, HOLDER), HOLDER), 7)
  t.equal(other.tickets.read(early, HOLDER), 6, 'its own of before')

  store = createMemoryStore({ clock })
  const late = create()
  await late.shared.join()
  t.equal(one.tickets.read(late.tickets.issue(8, HOLDER), HOLDER), undefined, 'the store has lost its data')
  clock.runUntil(10_000)
  for (const { shared } of [one, other]) await shared.ask()
  t.equal(one.tickets.read(late.tickets.issue(8, HOLDER), HOLDER), 8)
  t.equal(late.tickets.read(other.tickets.issue(9, HOLDER), HOLDER), 9)

  store = {}
  const alone = create()
  await alone.shared.join()
  t.equal(alone.tickets.read(alone.tickets.issue(9, HOLDER), HOLDER), 9)
  for (const { shared } of [one, other, late, alone]) shared.close()
})
