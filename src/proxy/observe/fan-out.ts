import type { Observer } from './observer.js'

type Call = (...args: unknown[]) => void

/** Calls several observers, in order. An event that none of them handles costs no call. */
export function combineObservers(observers: readonly Observer[]): Observer {
  const [only, ...more] = observers
  if (only === undefined || more.length === 0) return only ?? {}
  const calls = new Map<string, Call[]>()
  for (const observer of observers) {
    for (const name of EVENTS) {
      const call = observer[name] as Call | undefined
      if (call !== undefined) calls.set(name, [...(calls.get(name) ?? []), call.bind(observer)])
    }
  }
  return Object.fromEntries([...calls].map(([name, list]) => [name, list.length === 1 ? list[0]! : inTurn(list)]))
}

function inTurn(calls: readonly Call[]): Call {
  return (...args) => {
    for (const call of calls) call(...args)
  }
}

const EVENTS = [
  'began',
  'arrived',
  'queued',
  'unqueued',
  'released',
  'sent',
  'retried',
  'finished',
  'settled',
  'rehearsed',
  'shared',
  'paused',
  'learned',
  'rescheduled',
  'overridden',
  'broken',
  'duplicated',
  'unreachable',
  'tunnelClosed',
] as const satisfies readonly (keyof Observer)[]
