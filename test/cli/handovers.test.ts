/** Connections on their way to a worker whose channel ends. */
import type { Worker } from 'node:cluster'
import { EventEmitter } from 'node:events'
import t from 'tap'
import { rescueHandovers } from '../../src/cli/serving/worker-pool.js'

const tick = (): Promise<void> => new Promise(resolve => process.nextTick(resolve))

/** A worker's process, as Node's cluster sees it. */
class Child extends EventEmitter {
  readonly refused: unknown[] = []
  gone = 0

  constructor(readonly isWaiting: boolean) {
    super()
    this.on('disconnect', () => {
      this.gone += 1
    })
    this.on('internalMessage', message => {
      if (message.accepted === false) this.refused.push(message.ack)
    })
  }

  send(): boolean {
    return true
  }

  /** Node tells nobody while it waits for the answer to a handover. */
  disconnect(): void {
    if (!this.isWaiting) process.nextTick(() => this.emit('disconnect'))
  }
}

for (const isWaiting of [false, true]) {
  t.test(
    `the channel ends ${isWaiting ? 'while a handover waits for its answer' : 'and nothing is on its way'}`,
    async t => {
      const child = new Child(isWaiting)
      rescueHandovers({ process: child } as unknown as Worker, () => true)
      const send = child.send.bind(child) as (message: object, handle: object) => boolean
      send({ act: 'newconn', seq: 1 }, {})
      send({ act: 'newconn', seq: 2 }, {})
      child.emit('internalMessage', { ack: 1, accepted: true })
      child.disconnect()
      await tick()
      t.equal(child.gone, 1, 'Node takes it out of its list, once')
      t.same(child.refused, [2], 'another one gets what it has not taken')
    },
  )
}

t.test('no other worker serves: the connection is closed', async t => {
  const child = new Child(true)
  rescueHandovers({ process: child } as unknown as Worker, () => false)
  let closed = 0
  const handle = { close: () => (closed += 1) }
  ;(child.send.bind(child) as (message: object, handle: object) => boolean)({ act: 'newconn', seq: 7 }, handle)
  child.disconnect()
  await tick()
  t.equal(closed, 1)
  t.same(child.refused, [])
})
