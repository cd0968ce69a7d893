import t, { type Test } from 'tap'
import { connect, get } from '../proxy/harness.js'
import { type Case, CORPUS } from './corpus.js'
import { CUTS, NOTHING, type Stage, sendPieces, startStage } from './stage.js'

/** Longer ones are not sent byte by byte. */
const CHEAP = 2_000

t.test('the corpus has a case for each rule, and each name once', async t => {
  const names = CORPUS.flatMap(({ title, cases }) => cases.map(({ name }) => `${title}: ${name}`))
  t.ok(names.length >= 150, `${names.length}`)
  t.equal(new Set(names).size, names.length)
})

for (const [how, cut] of Object.entries(CUTS)) {
  for (const { title, cases } of CORPUS) {
    t.test(`${title}, ${how}`, async t => {
      const stage = await startStage(t)
      for (const each of cases) {
        if (how === 'byte by byte' && each.bytes.length > CHEAP) continue
        await t.test(each.name, t => play(t, stage, each, cut(each.bytes)))
      }
    })
  }
}

async function play(t: Test, stage: Stage, each: Case, pieces: readonly string[]): Promise<void> {
  const { rig, seen, faults } = stage
  const before = seen.length
  const outcomes = rig.outcomes.length
  const client = await connect(t, rig)
  await sendPieces(client, pieces)
  const answers = []
  for (const _ of each.statuses) answers.push(await client.answer(answers.length === 0 ? each.method : 'GET'))
  t.same(
    answers.map(({ status }) => status),
    each.statuses,
  )
  t.ok(
    answers.every(({ whole }) => whole),
    'whole answers',
  )
  const passed = each.statuses.filter(status => status === 200).length
  const mine = (): typeof seen => seen.slice(before)
  t.equal(mine().length, passed, 'requests that the upstream has seen')
  const request = mine()[0]
  if (each.target !== undefined) t.equal(request?.target, each.target, 'target')
  if (each.body !== undefined) t.equal(request?.body, each.body, 'body')

  if (each.after === 'open') {
    t.equal((await client.ask(get('/after'))).status, 200, 'the connection stays open')
    t.equal(mine().at(-1)?.target, '/after')
    t.equal(mine().length, passed + 1, 'and nothing else came')
    client.hangUp()
  } else {
    t.equal(answers.at(-1)?.header('connection'), 'close', 'said so')
    if (!client.ended) client.send(get('/after'))
    await client.end()
    client.hangUp()
    t.equal(client.rest, '', 'nothing follows the last answer')
    t.equal(mine().length, passed, 'and nothing is sent on')
  }
  t.same(faults.splice(0), [], 'nothing that is not as it must be')
  t.same(await stage.rest(), NOTHING)
  const finals = each.statuses.filter(status => status >= 200).length + (each.after === 'open' ? 1 : 0)
  // Those behind the last answer had arrived, too.
  const counted = rig.outcomes.slice(outcomes).filter(outcome => outcome !== ' cancelled 499')
  t.equal(counted.length, finals, 'each is counted once')
}
