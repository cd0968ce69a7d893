/** Faults and changes, as a scenario plans them. Each leaves an entry that says what was wrong, from when and until when. */
import type { Connection } from '../instances/store-at-distance.js'
import type { FaultKind } from './history.js'
import type { Instance } from './instance.js'
import type { BucketPlan, EventPlan } from './scenario.js'
import type { Condition } from './virtual-upstream.js'
import type { Running } from './world.js'

const CONDITIONS: readonly Condition[] = ['slow', 'dying', 'lying', 'refusing']

type Effect = (event: EventPlan, running: Running) => void

export function applyEvent(event: EventPlan, running: Running): void {
  EFFECTS[event.kind](event, running)
}

function note(event: EventPlan, { record, clock }: Running, lasts = event.lasts): void {
  const at = clock.now()
  record({ what: 'fault', kind: event.kind, at, until: at + lasts, instance: event.instance })
}

function chosen({ instance }: EventPlan, { instances }: Running): Instance[] {
  return instances.filter(({ number, isUp }) => isUp && (instance < 0 || number === instance))
}

/** Breaks connections to the store for a while. */
function breaks(begin: (connection: Connection) => void): Effect {
  return (event, running) => {
    note(event, running)
    const connections = chosen(event, running).flatMap(({ connection }) => connection ?? [])
    for (const connection of connections) begin(connection)
    running.clock.at(running.clock.now() + event.lasts, () => {
      for (const connection of connections) Object.assign(connection, { down: false, loses: undefined })
    })
  }
}

const EFFECTS: Readonly<Record<FaultKind, Effect>> = {
  stall(event, running) {
    note(event, running)
    running.stillUntil.set(event.instance, running.clock.now() + event.lasts)
  },

  crash(event, running) {
    const { instances } = running
    const victim = instances.find(({ number }) => number === Math.max(0, event.instance))!
    if (!victim.isUp || instances.filter(({ isUp }) => isUp).length === 1) return
    note(event, running, 0)
    victim.crash()
  },

  leave(event, running) {
    const { instances } = running
    const leaver = instances.find(({ number }) => number === Math.max(0, event.instance))!
    if (!leaver.isUp || instances.filter(({ isUp }) => isUp).length === 1) return
    note(event, running, 0)
    leaver.leave()
  },

  join(event, running) {
    note(event, running, 0)
    running.open()
  },

  'store-down': breaks(connection => {
    connection.down = true
  }),
  'store-silent': breaks(connection => {
    connection.loses = 'silent'
  }),
  'store-cut': breaks(connection => {
    connection.loses = 'cut'
  }),

  'store-slow'(event, running) {
    note(event, running)
    const { store, clock } = running
    store.slower = event.by
    clock.at(clock.now() + event.lasts, () => {
      store.slower = 0
    })
  },

  'store-clock'(event, running) {
    note(event, running, 0)
    running.store.ahead += event.by
  },

  reload(event, running) {
    note(event, running, 0)
    const { record, clock, instances } = running
    const buckets = running.buckets().map(bucket => ({ ...bucket, perSecond: bucket.perSecond * event.by }))
    running.configure(buckets)
    for (const { name, perSecond, capacity, burst } of buckets)
      record({
        ...{ what: 'limits', at: clock.now(), bucket: name, rate: perSecond / 1_000, capacity },
        ...(burst !== undefined && { burst }),
      })
    for (const instance of instances) instance.reload(buckets)
  },

  override(event, running) {
    note(event, running)
    const { clock, record, instances } = running
    const [bucket] = running.buckets() as [BucketPlan]
    const key = bucket.isOwn ? event.client : 'all'
    const set = (rate: number | undefined): void => {
      const present = rate ?? running.buckets()[0]!.perSecond / 1_000
      const { name, capacity, burst } = bucket
      record({
        ...{ what: 'limits', at: clock.now(), bucket: name, key, rate: present, capacity },
        ...(burst !== undefined && { burst }),
      })
      for (const instance of instances) instance.override(bucket, key, rate)
    }
    set((bucket.perSecond / 1_000) * event.by)
    clock.at(clock.now() + event.lasts, () => set(undefined))
  },

  pause(event, running) {
    note(event, running)
    for (const instance of running.instances) instance.pause(event.lasts)
  },

  upstream(event, running) {
    note(event, running)
    const { clock, instances } = running
    instances[0]!.upstreamIs(CONDITIONS[event.by]!)
    clock.at(clock.now() + event.lasts, () => instances[0]!.upstreamIs('well'))
  },

  reset(event, running) {
    note(event, running, 0)
    const [bucket] = running.buckets() as [BucketPlan]
    const [instance] = chosen(event, running)
    instance?.reset(bucket, bucket.isOwn ? event.client : 'all')
  },
}
