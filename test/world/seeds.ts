/** Which worlds a test runs, and what it says of those that fail. */
import type { Test } from 'tap'
import { runs } from '../runs.js'
import { type Counted, check, type Problem } from './checker.js'
import type { Entry, History } from './history.js'
import type { Open } from './instance.js'
import { type Scenario, scenarioOf } from './scenario.js'
import { shrink } from './shrink.js'
import { runWorld } from './world.js'

/** Failures that are shrunk. One says as much as many. */
const MOST_SHRUNK = 1

export interface WorldOf {
  open(): Open
  /** Changes what a seed says for what these instances can do. */
  fit?(scenario: Scenario): Scenario
}

/** 1 to n; with SHAPER_SEED=random or SHAPER_DEEP=1 as many others; with SHAPER_SEED=N that one. */
export function seedsOf(count: number): number[] {
  const { SHAPER_DEEP, SHAPER_SEED = SHAPER_DEEP === '1' ? 'random' : undefined } = process.env
  if (SHAPER_SEED !== undefined && SHAPER_SEED !== 'random') return [Number(SHAPER_SEED)]
  const first = SHAPER_SEED === 'random' ? 1 + Math.floor(2 ** 31 * Math.random()) : 1
  return Array.from({ length: runs(count) }, (_, at) => first + at)
}

export interface Tally {
  readonly faults: Map<string, number>
  readonly clients: Map<string, number>
  readonly entries: Map<string, number>
  readonly ends: Map<string, number>
  readonly counted: Counted
  ms: number
}

export function newTally(): Tally {
  const counted = { returns: 0, refusedReturns: 0, refused: [] }
  return { faults: new Map(), clients: new Map(), entries: new Map(), ends: new Map(), counted, ms: 0 }
}

function count(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1)
}

/** Runs one world, and adds what came about in it. */
export async function tryWorld(scenario: Scenario, open: Open, tally: Tally): Promise<readonly Problem[]> {
  const history = await runWorld(scenario, open)
  const { problems, counted } = check(history)
  for (const { kind } of scenario.clients) count(tally.clients, kind)
  for (const entry of history) countEntry(entry, tally)
  tally.counted.returns += counted.returns
  tally.counted.refusedReturns += counted.refusedReturns
  tally.counted.refused.push(...counted.refused.map(text => `seed ${scenario.seed}: ${text}`))
  tally.ms += history.at(-1)!.at
  return problems
}

function countEntry(entry: Entry, { faults, entries, ends }: Tally): void {
  count(entries, entry.what)
  if (entry.what === 'fault') count(faults, entry.kind)
  if (entry.what === 'end') count(ends, entry.how)
}

/** Makes a failure smaller, and describes it. */
export async function explain(scenario: Scenario, [first]: readonly Problem[], open: () => Open): Promise<string> {
  const fails = async (smaller: Scenario): Promise<boolean> =>
    check(await runWorld(smaller, open())).problems.some(({ rule }) => rule === first!.rule)
  const small = await shrink(scenario, fails)
  const history: History = await runWorld(small, open())
  const problem = check(history).problems.find(({ rule }) => rule === first!.rule)!
  return `in a smaller world: ${problem.text}\n${JSON.stringify(small)}`
}

function listOf(counts: Map<string, number>): string {
  return [...counts]
    .sort(([, one], [, other]) => other - one)
    .map(([name, number]) => `${name} ${number}`)
    .join(', ')
}

export function describe({ faults, clients, entries, ends, counted, ms }: Tally): string[] {
  return [
    `clients: ${listOf(clients)}`,
    `faults: ${listOf(faults)}`,
    `entries: ${listOf(entries)}`,
    `ends: ${listOf(ends)}`,
    `returns with a booking: ${counted.returns}, refused ${counted.refusedReturns}`,
    `${(ms / 3_600_000).toFixed(1)} hours`,
  ]
}

export async function testWorlds(t: Test, seeds: readonly number[], { open, fit = same }: WorldOf): Promise<Tally> {
  const tally = newTally()
  let failures = 0
  for (const seed of seeds) {
    const scenario = fit(scenarioOf(seed))
    const problems = await tryWorld(scenario, open(), tally)
    if (problems.length === 0) continue
    failures += 1
    const smaller = failures <= MOST_SHRUNK ? `\n${await explain(scenario, problems, open)}` : ''
    t.fail(`seed ${seed}: ${problems[0]!.rule}: ${problems[0]!.text}${smaller}`)
  }
  for (const line of describe(tally)) t.comment(line)
  // Of those who were told when to come 2 % may be refused, for what instances do not know of each other.
  const { returns, refusedReturns, refused } = tally.counted
  t.ok(refusedReturns <= Math.max(1, 0.02 * returns), `${refusedReturns} of ${returns} refused: ${refused.slice(0, 9)}`)
  return tally
}

function same(scenario: Scenario): Scenario {
  return scenario
}
