/**
 * Runs worlds by their seeds, and prints what they break. SHAPER_SHRINK=1 makes each failure smaller.
 *
 *     node build/test/world/run.js SEED            its scenario, its history and its problems
 *     node build/test/world/run.js FROM TO         what of these seeds fails, and how often what came about
 *
 * With SHAPER_PROXIES=1 they are worlds of whole proxies.
 */
import { check } from './checker.js'
import { CoreInstance } from './core-instance.js'
import type { Open } from './instance.js'
import { fitProxies, openProxies } from './proxy-world.js'
import { type Scenario, scenarioOf } from './scenario.js'
import { describe, explain, newTally, tryWorld } from './seeds.js'
import { runWorld } from './world.js'

const print = (line: string): boolean => process.stdout.write(`${line}\n`)
const areProxies = process.env.SHAPER_PROXIES === '1'
const openCore = (): Open => (world, number) => new CoreInstance(world, number)
const open = areProxies ? openProxies : openCore
const makeScenario = (seed: number): Scenario => (areProxies ? fitProxies(scenarioOf(seed)) : scenarioOf(seed))

async function runOne(seed: number): Promise<void> {
  const scenario = makeScenario(seed)
  const history = await runWorld(scenario, open())
  for (const entry of history) print(JSON.stringify(entry))
  print(JSON.stringify(scenario))
  const { problems } = check(history)
  for (const { rule, text } of problems) print(`${rule}: ${text}`)
  if (problems.length > 0) print(await explain(scenario, problems, open))
}

async function runMany(from: number, to: number): Promise<void> {
  const tally = newTally()
  const began = performance.now()
  let failed = 0
  for (let seed = from; seed <= to; seed += 1) {
    const scenario = makeScenario(seed)
    const problems = await tryWorld(scenario, open(), tally)
    if (problems.length === 0) continue
    failed += 1
    print(`seed ${seed}: ${problems.length}, first ${problems[0]!.rule}: ${problems[0]!.text}`)
    if (process.env.SHAPER_SHRINK === '1') print(await explain(scenario, problems, open))
  }
  for (const line of describe(tally)) print(line)
  for (const line of tally.counted.refused) print(line)
  const minutes = (performance.now() - began) / 60_000
  const { user, system } = process.cpuUsage()
  const each = (user + system) / 1_000 / (to - from + 1)
  print(
    `${failed} of ${to - from + 1} failed; ${Math.round((to - from + 1) / minutes)} a minute, ${each.toFixed(1)} ms of CPU each`,
  )
  if (failed > 0) process.exitCode = 1
}

const [from, to] = process.argv.slice(2).map(Number)
if (to === undefined) await runOne(from ?? 1)
else await runMany(from!, to)
// A world leaves servers behind that listen.
process.exit()
