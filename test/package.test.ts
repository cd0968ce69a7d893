/** The package as users get it: packed, installed elsewhere, imported, required, compiled against. Needs an up-to-date dist. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import t from 'tap'
import { ROOT } from './cli/command.js'
import { compile, consumerOf, emptyDirectory, NAMES, pack, QUIET, RESOLUTIONS, run } from './packed.js'

const PROGRAM = `
import { createServer } from 'node:http'
import { Agent, fetch } from 'undici'
import {
  type Admitted, createShaper, LeakyBucket, OverflowError, type OutboundShaper, type ShaperStatus, shape,
} from 'leaky-shaper'

const shaper: OutboundShaper = createShaper({ rate: '100/s', capacity: 10, maxWait: '10s' })
const admitted: Admitted = await shaper.admit('key', { cost: 2, signal: AbortSignal.timeout(10_000) })
const length: number = await shaper.run('key', async () => 'text'.length)
const double = shaper.wrap((value: number) => Promise.resolve(value * 2), { key: value => String(value) })
const doubled: number = await double(2)
const status: ShaperStatus = shaper.status()
shaper.on('released', ({ key, waitMs }) => void [key.length, waitMs.toFixed()])
// @ts-expect-error: an unknown event
shaper.on('releasd', () => undefined)
// @ts-expect-error: no rate
export const withoutRate = () => createShaper({ rate: {}, capacity: 10 })
export const withStore = (url: string) => createShaper({ rate: 5, capacity: 5, store: { type: "redis", url } })
const server = createServer((_, res) => void res.end('ok')).listen(0, '127.0.0.1', async () => {
  const interceptor = shape({ rate: '50/s', capacity: 100, key: 'origin', retry: { status: [429], max: 3 } })
  const dispatcher = new Agent().compose(interceptor)
  const { port } = server.address() as { port: number }
  const answer = await fetch(\`http://127.0.0.1:\${port}/\`, { dispatcher })
  console.log(await answer.text(), admitted.waitMs, length, doubled, status.queued, interceptor.shaper.status().queued)
  console.log(new LeakyBucket({ rate: '1/s', capacity: 1 }).level, new OverflowError('overflow', '', 5).code)
  await dispatcher.close()
  server.close()
})
`

t.test('packed and installed', { timeout: 180_000 }, async t => {
  const directory = emptyDirectory(t)
  const project = join(directory, 'project')
  const { tarball, paths } = await pack(ROOT, `${directory}/packed`)

  await t.test('has the needed files, and nothing else', async t => {
    const allowed =
      /^(LICENSE|README\.md|package\.json|shaper\.schema\.json|bin\/shaper\.js|deploy\/(README\.md|gate\/[\w.-]+|kubernetes\/[\w-]+\.yaml)|docs\/([\w-]+\.md|alerts\.yml|grafana-dashboard\.json|shaper\.service)|dist\/(index\.cjs|zod\.LICENSE|[\w/-]+(\.js|\.lua|\.sql|\.html|\.css)|src\/[\w/-]+\.ts|types\/(package\.json|index\.d\.mts|[\w/-]+\.d\.ts(\.map)?)))$/
    t.same(
      paths.filter(path => !allowed.test(path)),
      [],
    )
    for (const path of [
      'dist/index.js',
      'dist/types/index.d.ts',
      'dist/pacing/pacing-thread.js',
      'dist/stores/redis/scripts/decide.lua',
      'dist/zod.LICENSE',
      'dist/stores/redis/scripts/decider/leases.lua',
    ]) {
      t.ok(paths.includes(path), path)
    }
  })

  await t.test('npx starts the demo', async t => {
    const begun = performance.now()
    // Nothing of it is in this cache.
    const child = spawn('npx', ['--yes', `./${basename(tarball)}`, 'demo'], {
      cwd: dirname(tarball),
      env: { ...process.env, NODE_V8_COVERAGE: '', npm_config_cache: join(directory, 'cache') },
    })
    t.match(String(await once(child.stdout, 'data')), /^A burst of 14/)
    t.comment(`${((performance.now() - begun) / 1_000).toFixed(1)} s until the demo runs`)
    t.same(await once(child, 'close'), [0, null])
  })

  const others = ['undici@7', 'undici-8@npm:undici@8', '@types/node@20']
  await run(project, 'npm', 'install', ...QUIET, '--prefer-offline', tarball, ...others)

  await t.test('the command', async t => {
    t.match(await run(project, 'npx', '--no-install', 'shaper', '--version'), /^\d+\.\d+\.\d+\s*$/)
    t.match(
      await run(project, 'npx', '--no-install', 'shaper', 'check', '--rate', '5/s', '--upstream', 'http://a'),
      /5\/s/,
    )
  })

  await t.test('import and require', async t => {
    const show = 'console.log(Object.keys(library).sort().join())'
    writeFileSync(join(project, 'imports.mjs'), `import * as library from 'leaky-shaper'\n${show}`)
    writeFileSync(
      join(project, 'requires.cjs'),
      `const library = require('leaky-shaper')\n${show}
const shaper = library.createShaper({ rate: '100/s', capacity: 10 })
shaper.admit().then(() => shaper.run(() => console.log('ran')))`,
    )
    t.equal((await run(project, process.execPath, 'imports.mjs')).trim(), NAMES.join())
    t.equal((await run(project, process.execPath, 'requires.cjs')).trim(), `${NAMES.join()}\nran`)
  })

  await t.test('TypeScript in its strictest mode', async t => {
    const source = join(project, 'source')
    mkdirSync(source)
    writeFileSync(join(source, 'main.mts'), PROGRAM)
    t.equal(await compile(source, 'main.mts', { module: 'nodenext', skipLibCheck: false }), '')
    t.equal(await run(source, process.execPath, 'main.mjs'), 'ok 0 4 4 0 0\n0 SHAPER_OVERFLOW\n')
  })

  for (const { name, module, file } of RESOLUTIONS) {
    await t.test(`TypeScript with moduleResolution ${name}, ${file}, undici 7 and 8`, async t => {
      const source = join(project, 'source')
      rmSync(source, { recursive: true, force: true })
      mkdirSync(source)
      writeFileSync(join(source, file), consumerOf('leaky-shaper'))
      t.equal(await compile(source, file, { module, moduleResolution: name, skipLibCheck: true }), '')
      t.equal(await run(source, process.execPath, file.replace('ts', 'js')), '0\n')
    })
  }
})
