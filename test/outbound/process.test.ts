/** What a shaper means for the process it is in: how long that lives, and how much it takes. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** Runs a script against the built library. Returns its output, how it ended, and its run time in ms. */
async function script(text: string, flags: readonly string[] = []) {
  const head = `import { createShaper, shape } from 'leaky-shaper'\nconst began = performance.now()\n`
  const tail = `\nprocess.once('exit', () => console.log('ended', Math.round(performance.now() - began)))`
  const args = [...flags, '--input-type=module', '-e', `${head}${text}${tail}`]
  const child = spawn(process.execPath, args, {
    cwd: ROOT,
    env: { PATH: process.env.PATH, HOME: process.env.HOME },
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: 60_000,
  })
  let output = ''
  child.stdout.on('data', chunk => {
    output += chunk
  })
  const [code] = await once(child, 'close')
  const [, lived = 'NaN'] = /^ended (\d+)$/m.exec(output) ?? []
  return { code: code as number | null, output, lived: Number(lived) }
}

t.test('the process lives as long as a call waits, and no longer', async t => {
  const { code, output, lived } = await script(`
    const shaper = createShaper({ rate: '5/s', capacity: 10 })
    for (const name of ['a', 'b', 'c']) shaper.admit().then(() => console.log(name))
  `)
  t.equal(code, 0)
  t.match(output, /^a\nb\nc\n/)
  t.ok(lived >= 400 && lived < 2_000, `${lived} ms`)
})

t.test('a pause, a distant slot and the clock do not keep the process alive', async t => {
  const { code, output, lived } = await script(`
    const shaper = createShaper({ rate: '1/h', capacity: 10 })
    shape({ rate: '1/h', capacity: 10 })
    await shaper.admit()
    const controller = new AbortController()
    shaper.admit('', { signal: controller.signal }).catch(() => console.log('aborted'))
    shaper.on('resumed', () => {})
    shaper.pause(60_000, 'other')
    shaper.pause(60_000)
    setTimeout(() => controller.abort(), 100)
  `)
  t.equal(code, 0)
  t.match(output, /^aborted\n/)
  t.ok(lived >= 99 && lived < 2_000, `${lived} ms`)
})

t.test('the process lives until a drain has timed out and its caller has finished', async t => {
  const { code, output, lived } = await script(`
    const shaper = createShaper({ rate: '5/s', capacity: 10 })
    void shaper.run(() => new Promise(() => {}))
    await shaper.drain({ timeout: 300 })
    console.log('drained')
  `)
  t.equal(code, 0)
  t.match(output, /^drained\n/)
  t.ok(lived >= 299 && lived < 2_000, `${lived} ms`)
})

t.test('the process ends if it is drained while its store opens', async t => {
  for (const [type, url] of [
    ['redis', 'redis://127.0.0.1:1'],
    ['postgres', 'postgres://127.0.0.1:1/db'],
  ]) {
    const { code, output, lived } = await script(`
      const store = { type: '${type}', url: '${url}' }
      const shaper = createShaper({ rate: '5/s', capacity: 10, store })
      await shaper.drain()
      console.log('drained')
    `)
    t.equal(code, 0)
    t.match(output, /^drained\n/)
    t.ok(lived < 2_000, `${type}: ${lived} ms`)
  }
})

t.test('a high rate is kept from the start, even while the clock starts', async t => {
  const { output } = await script(`
    const shaper = createShaper({ rate: 1000, capacity: 1000 })
    const round = async () => {
      const times = []
      await Promise.all(Array.from({ length: 400 }, () => shaper.run(() => void times.push(performance.now()))))
      const gaps = times.slice(1).map((time, at) => time - times[at])
      return [Math.min(...gaps), times.at(-1) - times[0]]
    }
    const [least, took] = await round()
    const [, again] = await round()
    console.log('least', least, 'took', took, 'then', again)
  `)
  const [, least, took, again] = /^least (\S+) took (\S+) then (\S+)$/m.exec(output) ?? []
  t.ok(Number(least) >= 0.4, `the least gap is ${least} ms`)
  // A busy machine makes both late.
  const most = Math.max(1_200, 2 * Number(again))
  t.ok(Number(took) >= 398 && Number(took) < most, `399 slots took ${took} ms, and ${again} once the clock runs`)
})

t.test('memory stays flat over 300,000 calls', async t => {
  const { output } = await script(
    `
    const shaper = createShaper({ rate: 1e6, capacity: Infinity, maxKeys: 1000 })
    const settled = () => {
      for (let at = 0; at < 4; at += 1) gc()
      return process.memoryUsage().heapUsed
    }
    const heaps = []
    let count = 0
    const calls = async upTo => {
      for (; count < upTo; ) {
        const batch = []
        for (let at = 0; at < 500; at += 1, count += 1) {
          const key = 'key' + (count % 5000)
          batch.push(at % 2 ? shaper.run(key, async () => 1) : shaper.admit(key))
        }
        await Promise.allSettled(batch)
      }
      await new Promise(resolve => setTimeout(resolve, 50))
      heaps.push(settled())
    }
    await calls(100_000)
    await calls(300_000)
    console.log('heaps', heaps.join(' '))
  `,
    ['--expose-gc'],
  )
  const [, early, late] = /^heaps (\d+) (\d+)$/m.exec(output) ?? []
  t.ok(Number(late) / Number(early) < 1.05, `${early} bytes after 100,000, ${late} after 300,000`)
})
