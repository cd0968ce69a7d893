/** Which server takes the next request, and how many may pass the gate. */
import fc from 'fast-check'
import t from 'tap'
import { ServerPlace, type ServerRules, ServerSet } from '../../src/core/release/server-set.js'
import { runs } from '../runs.js'

function place(name: string, rules: Partial<ServerRules> = {}): ServerPlace {
  return new ServerPlace({ url: `http://${name}`, weight: 1, maxInFlight: Infinity, backup: false, ...rules })
}

function setOf(places: readonly ServerPlace[], rule: ServerSet['rule'] = 'least-in-flight'): ServerSet {
  const set = new ServerSet()
  set.places = places
  set.rule = rule
  return set
}

/** The names of the servers for so many requests that stay. */
function names(set: ServerSet, count: number): string {
  let chosen = ''
  for (let at = 0; at < count; at += 1) {
    const next = set.pick({})!
    next.inFlight += 1
    chosen += next.rules.url.at(-1)
  }
  return chosen
}

t.test('the server with the fewest requests for its weight takes the next', async t => {
  const [a, b] = [place('a'), place('b', { weight: 2 })]
  const set = setOf([a, b])
  t.equal(names(set, 9).replace(/a/g, '').length, 6)
  a.inFlight = 0
  t.equal(set.pick({}), a)
})

t.test('servers that are equally busy take turns by weight', async t => {
  const set = setOf([place('a', { weight: 3 }), place('b')], 'round-robin')
  t.equal(names(set, 8), 'aabaaaba')
  const idle = setOf([place('a'), place('b'), place('c')])
  const chosen = [1, 2, 3, 4].map(() => idle.pick({})!.rules.url.at(-1))
  t.same(chosen, ['a', 'b', 'c', 'a'], 'each request was over before the next came')
})

t.test('a server that was picked and not used has its turn still', async t => {
  for (const rule of ['least-in-flight', 'round-robin'] as const) {
    const set = setOf([place('a', { weight: 3 }), place('b')], rule)
    const picked = Array.from({ length: 8 }, () => {
      const armed = set.pick({})
      set.returnTurn()
      const chosen = set.pick({})
      t.equal(chosen, armed)
      return chosen!.rules.url.at(-1)
    })
    t.equal(picked.join(''), 'aabaaaba')
    set.pick({ tried: [set.places[0]!] })
    set.returnTurn()
    t.equal(set.pick({})!.rules.url.at(-1), 'a', 'a pick without a choice has taken no turn')
  }
})

t.test('a server that is gone takes no place of those that are here', async t => {
  const [a, b, c] = [place('a', { maxInFlight: 2 }), place('b', { maxInFlight: 2 }), place('c', { maxInFlight: 2 })]
  const set = setOf([a, b])
  a.inFlight = 2
  t.equal(set.bound, 4)
  set.replace([b, c])
  t.equal(set.bound, 6, 'two of it, and four free ones')
  t.equal(names(set, 4).replace(/a/g, ''), 'bccb')
  t.equal(set.pick({}), undefined)
  a.inFlight = 0
  t.equal(set.bound, 4)
  const heir = new ServerSet()
  heir.replace([place('d', { maxInFlight: 2 })], set)
  t.equal(heir.bound, 6, 'also of those that another upstream had')
})

t.test('backup servers take requests only while no other is up', async t => {
  const [a, b, spare] = [place('a', { maxInFlight: 1 }), place('b'), place('s', { backup: true })]
  const set = setOf([a, b, spare])
  b.isDown = true
  a.inFlight = 1
  t.equal(set.pick({}), undefined, 'one that is full is up')
  t.equal(set.bound, 1)
  a.isBlocked = true
  t.equal(set.pick({}), spare)
  t.equal(set.bound, Infinity)
  a.probe = true
  a.inFlight = 0
  t.equal(set.pick({}), a, 'its probe')
  t.equal(set.pick({ armed: true }), undefined, 'what is armed is no probe: it is not armed, so that it can be')
})

t.test('the check is asked first: a server that it finds down gets no probe', async t => {
  const [a, b] = [place('a'), place('b')]
  const set = setOf([a, b])
  a.isBlocked = true
  a.probe = true
  a.isDown = true
  t.equal(set.pick({}), b)
  a.isDown = false
  t.equal(set.pick({}), a)
})

t.test('a server that warms up gets its part', async t => {
  const [a, b] = [place('a'), place('b')]
  a.part = 0.1
  t.equal(names(setOf([a, b]), 11).replace(/b/g, '').length, 1)
})

t.test('a server that has failed a request is not chosen for it again', async t => {
  const [a, b] = [place('a'), place('b')]
  const set = setOf([a, b])
  t.equal(set.pick({ tried: [a] }), b)
  t.equal(set.pick({ tried: [a, b] }), undefined)
})

t.test('what is armed towards a server goes elsewhere if that has fewer by more than one', async t => {
  const [a, b] = [place('a'), place('b')]
  const set = setOf([a, b])
  a.inFlight = 2
  a.armed = 1
  t.equal(set.isUneven, false, 'without it the other has one less')
  a.inFlight = 3
  t.equal(set.isUneven, true)
  a.armed = 0
  t.equal(set.isUneven, false, 'it has been sent')
})

t.test('property: a hash pick keeps the server of a key, and one that leaves moves only its own keys', async t => {
  const keys = Array.from({ length: 4_000 }, (_, at) => `user-${at}`)
  fc.assert(
    fc.property(fc.uniqueArray(fc.domain(), { minLength: 2, maxLength: 8 }), fc.nat(), (hosts, which) => {
      const places = hosts.map(host => place(host))
      const set = setOf(places, 'hash')
      const before = keys.map(key => set.pick({ key })!)
      const gone = places[which % places.length]!
      gone.isDown = true
      const moved = keys.filter((key, at) => {
        const now = set.pick({ key })!
        if (before[at] === gone) return true
        if (now !== before[at]) throw new Error(`${key} moved though its server is up`)
        return false
      })
      const share = moved.length / keys.length
      return Math.abs(share - 1 / places.length) < 0.06
    }),
    { numRuns: runs(100) },
  )
  const [a, b] = [place('a', { weight: 3 }), place('b')]
  const weighted = setOf([a, b], 'hash')
  const share = keys.filter(key => weighted.pick({ key }) === a).length / keys.length
  t.ok(Math.abs(share - 0.75) < 0.03, `${share} of the keys for a weight of 3 of 4`)
})

/** A gate in front of servers, as the proxy has it. */
class World {
  readonly #places: readonly ServerPlace[]
  readonly #set: ServerSet
  /** Passed, and not chosen for yet. */
  #passed = 0
  readonly #chosen: ServerPlace[] = []

  constructor(places: readonly ServerPlace[]) {
    this.#places = places
    this.#set = setOf(places)
  }

  take(what: string, at: number): void {
    if (what === 'pass') this.#pass()
    else if (what === 'choose') this.#choose()
    else if (what === 'end' || what === 'tunnel') this.#end(what, at)
    // What has passed is chosen for in the same turn of the event loop: nothing of this happens meanwhile.
    else if (this.#passed === 0) this.#change(what, this.#places[at % this.#places.length]!)
  }

  #pass(): void {
    if (!this.#set.isDown && this.#passed + this.#chosen.length < this.#set.bound) this.#passed += 1
  }

  #choose(): void {
    if (this.#passed === 0) return
    const place = this.#set.pick({})
    if (place === undefined) throw new Error('it passed and no server has a place')
    this.#passed -= 1
    this.#chosen.push(place)
    place.inFlight += 1
    if (place.isBlocked) [place.probe, place.probing] = [false, true]
  }

  #end(what: 'end' | 'tunnel', at: number): void {
    const [over] = this.#chosen.splice(at % Math.max(1, this.#chosen.length), 1)
    if (over === undefined) return
    over.inFlight -= 1
    if (what === 'tunnel') over.tunnels += 1
  }

  #change(what: string, place: ServerPlace): void {
    if (what === 'block') place.isBlocked = true
    else if (what === 'probe') place.probe = place.isBlocked
    else place.isDown = what === 'down'
  }

  fault(): string | undefined {
    for (const { inFlight, rules } of this.#places)
      if (inFlight > rules.maxInFlight || inFlight > (rules.connections ?? Infinity))
        return `${inFlight} in flight at ${JSON.stringify(rules)}`
    if (this.#passed > 0 || this.#set.isDown) return undefined
    const hasPlace = this.#set.pick({}) !== undefined
    const isOpen = this.#chosen.length < this.#set.bound
    return hasPlace === isOpen
      ? undefined
      : `the gate is ${isOpen ? 'open' : 'shut'}, and a server ${hasPlace ? 'has' : 'has no'} place`
  }
}

t.test('property: what passes the gate finds a server with a place, and nothing waits while one has', async () => {
  const server = fc.record({
    maxInFlight: fc.constantFrom(1, 2, 5, Infinity),
    connections: fc.constantFrom(undefined, 3),
    backup: fc.boolean(),
    weight: fc.constantFrom(1, 2),
  })
  const kinds = ['pass', 'pass', 'choose', 'choose', 'end', 'tunnel', 'down', 'up', 'block', 'probe']
  const step = fc.record({ what: fc.constantFrom(...kinds), at: fc.nat() })
  fc.assert(
    fc.property(fc.array(server, { minLength: 1, maxLength: 4 }), fc.array(step, { maxLength: 60 }), (rules, steps) => {
      const places = rules.map(({ connections, ...rest }, at) =>
        place(`${at}`, { ...rest, ...(connections && { connections }) }),
      )
      const world = new World(places)
      for (const { what, at } of steps) {
        world.take(what, at)
        const fault = world.fault()
        if (fault !== undefined) throw new Error(fault)
      }
    }),
    { numRuns: runs(5_000) },
  )
})
