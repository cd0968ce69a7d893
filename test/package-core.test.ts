/** leaky-shaper-core in an empty project, without a network. Needs an up-to-date dist. */
import { cpSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ROOT } from './cli/command.js'
import { compile, consumerOf, emptyDirectory, loadedFiles, NAMES, pack, QUIET, RESOLUTIONS, run } from './packed.js'
import { startPostgres } from './servers/postgres.js'
import { startRedis } from './servers/redis.js'

t.test('packed and installed', { timeout: 240_000 }, async t => {
  const directory = emptyDirectory(t)
  const project = join(directory, 'project')
  const { tarball } = await pack(`${ROOT}/dist-core`, `${directory}/packed`)
  await run(project, 'npm', 'install', ...QUIET, '--offline', tarball, `${ROOT}/node_modules/undici`)

  await t.test('installs nothing but itself, and loads nothing but itself', async t => {
    const installed = readdirSync(join(project, 'node_modules')).filter(name => !name.startsWith('.'))
    t.same(installed, ['leaky-shaper-core', 'undici'])
    for (const code of ["import 'leaky-shaper-core'", "require('leaky-shaper-core')"]) {
      const { own, others } = await loadedFiles(project, 'leaky-shaper-core', code)
      t.same(others, [], code)
      // One of them is the code itself.
      t.ok(own <= 3, `${own} files`)
    }
  })

  await t.test('import and require, of the same classes', async t => {
    const code = `
import * as library from 'leaky-shaper-core'
import { createRequire } from 'node:module'
import { Agent, fetch } from 'undici'
import { createServer } from 'node:http'
const required = createRequire(process.cwd() + '/')('leaky-shaper-core')
console.log(Object.keys(library).sort().join())
console.log(Object.keys(required).sort().join())
console.log(Object.keys(library).every(name => library[name] === required[name]))
const shaper = required.createShaper({ rate: '100/s', capacity: 1 })
console.log(await shaper.run(() => 'ran'))
const full = await Promise.allSettled([shaper.admit(), shaper.admit()])
console.log(full.some(({ reason }) => reason instanceof library.OverflowError))
const server = createServer((_, res) => res.end('answer')).listen(0, '127.0.0.1', async () => {
  const dispatcher = new Agent().compose(library.shape({ rate: '50/s', capacity: 9 }))
  console.log(await (await fetch('http://127.0.0.1:' + server.address().port, { dispatcher })).text())
  await dispatcher.close()
  server.close()
})`
    writeFileSync(join(project, 'main.mjs'), code)
    const lines = (await run(project, process.execPath, 'main.mjs')).trim().split('\n')
    t.same(lines, [NAMES.join(), NAMES.join(), 'true', 'ran', 'true', 'answer'])
  })

  await t.test('a store without its client says what to install', async t => {
    for (const [client, store] of [
      ['ioredis', "{ type: 'redis', url: 'redis://127.0.0.1:1' }"],
      ['pg', "{ type: 'postgres', url: 'postgres://127.0.0.1:1/none' }"],
    ]) {
      const code = `const shaper = require('leaky-shaper-core').createShaper({ rate: 5, capacity: 5, store: ${store} })
const tell = error => console.log(error.message)
shaper.run(() => 1).catch(tell).then(() => shaper.run(() => 2)).catch(tell).then(() => shaper.drain())`
      const output = await run(project, process.execPath, '-e', code)
      t.equal(output, `the store needs the package ${client}; type: npm install ${client}\n`.repeat(2))
    }
  })

  await t.test('a store finds its client where npm and pnpm put it', async t => {
    const [strict, workspace] = ['strict', 'workspace'].map(name => join(directory, name)) as [string, string]
    const member = join(workspace, 'member')
    layOut(strict, strict)
    layOut(workspace, member)
    // pnpm keeps the packages of a member for all, and those that the root does not have itself in one more place.
    const places = [
      { home: project, clients: join(project, 'node_modules') },
      { home: strict, clients: join(strict, 'node_modules') },
      { home: member, clients: join(workspace, 'node_modules/.pnpm/node_modules') },
    ]
    for (const [client, store] of [
      ['ioredis', "{ type: 'redis', url: 'redis://127.0.0.1:1', onOutage: 'closed' }"],
      ['pg', "{ type: 'postgres', url: 'postgres://127.0.0.1:1/none', onOutage: 'closed' }"],
    ] as const) {
      const code = `const shaper = require('leaky-shaper-core').createShaper({ rate: 5, capacity: 5, store: ${store} })
shaper.run(() => 1).catch(error => console.log(error.message)).then(() => shaper.drain())`
      for (const { home, clients } of places) {
        mkdirSync(clients, { recursive: true })
        symlinkSync(`${ROOT}/node_modules/${client}`, join(clients, client))
        const output = await run(home, process.execPath, '-e', code)
        rmSync(join(clients, client))
        t.equal(output, 'the store does not answer\n', `${client}, ${home}`)
      }
    }

    /** The core as pnpm installs it. */
    function layOut(root: string, home: string): void {
      const own = join(root, 'node_modules/.pnpm/leaky-shaper-core/node_modules/leaky-shaper-core')
      cpSync(join(project, 'node_modules/leaky-shaper-core'), own, { recursive: true })
      mkdirSync(join(home, 'node_modules'), { recursive: true })
      symlinkSync(own, join(home, 'node_modules/leaky-shaper-core'))
    }
  })

  await t.test('stores work: their scripts are in the one file', async t => {
    const [redis, postgres] = [await startRedis(), await startPostgres()]
    t.teardown(() => Promise.all([redis.stop(), postgres.close()]))
    for (const [client, type, url] of [
      ['ioredis', 'redis', redis.url],
      ['pg', 'postgres', postgres.url],
    ] as const) {
      const store = JSON.stringify({ type, url, onOutage: 'closed', timeout: '3s' })
      const code = `const shaper = require('leaky-shaper-core').createShaper({ rate: 5, capacity: 5, store: ${store} })
shaper.run(() => 'ran').then(console.log, error => console.log(error.message)).then(() => shaper.drain())`
      symlinkSync(`${ROOT}/node_modules/${client}`, join(project, 'node_modules', client))
      t.equal(await run(project, process.execPath, '-e', code), 'ran\n', type)
      rmSync(join(project, 'node_modules', client))
    }
  })

  await t.test('its import takes at most 50 ms of CPU, or on a slow machine a third of that of undici', async t => {
    const loads = [
      "await import('undici')",
      "await import('leaky-shaper-core')",
      "void (await import('node:module')).createRequire(process.cwd() + '/')('leaky-shaper-core')",
    ]
    const least = loads.map(() => Infinity)
    // In turn, so that what else the machine does makes all of them longer alike.
    for (let round = 0; round < 7; round += 1) {
      for (const [at, load] of loads.entries()) {
        const code = `const before = process.cpuUsage()
;${load}
const { user, system } = process.cpuUsage(before)
console.log((user + system) / 1_000)`
        const time = Number(await run(project, process.execPath, '--input-type=module', '-e', code))
        least[at] = Math.min(least[at]!, time)
      }
    }
    const [others, ...ours] = least
    for (const [at, time] of ours.entries())
      t.ok(time <= Math.max(50, others! / 3), `${loads[at + 1]}: ${time} ms, undici ${others} ms`)
  })

  await t.test('the types need no undici', async t => {
    const source = join(project, 'without')
    mkdirSync(join(source, 'node_modules/@types'), { recursive: true })
    for (const name of ['leaky-shaper-core', '@types/node', 'undici-types'])
      cpSync(
        join(name.startsWith('leaky') ? project : ROOT, 'node_modules', name),
        join(source, 'node_modules', name),
        {
          recursive: true,
        },
      )
    const text = "import { createShaper } from 'leaky-shaper-core'\nexport const shaper = createShaper({ rate: 5 })\n"
    writeFileSync(join(source, 'main.mts'), text)
    rmSync(join(project, 'node_modules/undici'), { recursive: true })
    t.equal(await compile(source, 'main.mts', { module: 'nodenext', skipLibCheck: false }), '')
    symlinkSync(`${ROOT}/node_modules/undici`, join(project, 'node_modules/undici'))
  })

  // Only for types, and only now: they were not installed.
  mkdirSync(join(project, 'node_modules/@types'))
  for (const name of ['undici-8', '@types/node'])
    symlinkSync(`${ROOT}/node_modules/${name}`, join(project, 'node_modules', name))

  for (const { name, module, file } of RESOLUTIONS) {
    await t.test(`TypeScript with moduleResolution ${name}, ${file}, undici 7 and 8`, async t => {
      const source = join(project, 'source')
      rmSync(source, { recursive: true, force: true })
      mkdirSync(source)
      writeFileSync(join(source, file), consumerOf('leaky-shaper-core'))
      // undici's own types need more than a project without the DOM has.
      t.equal(await compile(source, file, { module, moduleResolution: name, skipLibCheck: true }), '')
      t.equal(await run(source, process.execPath, file.replace('ts', 'js')), '0\n')
    })
  }
})
