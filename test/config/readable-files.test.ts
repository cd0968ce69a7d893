import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { changedFiles, usedFiles } from '../../src/config/checks/readable-files.js'
import { ConfigError, loadConfig } from '../../src/config/load.js'
import { socketFolder } from '../servers/socket-folder.js'
import { linesOf } from './sample.js'

const fixture = (name: string): string =>
  readFileSync(fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url)), 'utf8')

t.test('files that the configuration names are read with it', async t => {
  const cwd = t.testdir({
    'cert.pem': fixture('upgrade-cert.pem'),
    'key.pem': fixture('upgrade-key.pem'),
    junk: 'junk',
  })
  const problems = (tls: object, ca?: string): string => {
    const upstream = { url: 'https://127.0.0.1:1', ...(ca !== undefined && { tls: { ca: `${cwd}/${ca}` } }) }
    const listen = { address: '127.0.0.1:0', tls }
    const config = JSON.stringify({ listen, upstream, buckets: { client: { rate: '5/s' } } })
    const name = `${cwd}/config.json`
    writeFileSync(name, config)
    try {
      loadConfig({ file: name, flags: {}, env: {}, cwd })
      return ''
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error
      return error.message
    }
  }
  const [cert, key] = [`${cwd}/cert.pem`, `${cwd}/key.pem`]
  t.equal(problems({ cert, key }), '')
  t.equal(problems({ cert, key }, 'cert.pem'), '')
  const lines = problems({ cert: `${cwd}/nope.pem`, key: `${cwd}/junk` }, 'none').split('\n')
  t.equal(lines.length, 3)
  t.match(lines[0], /^listen\.tls\.cert: ".*" does not exist; name a PEM file$/)
  t.match(
    lines[1],
    /^listen\.tls\.key: ".*" is not a usable PEM file, or its key does not belong to the certificate; name another file$/,
  )
  t.match(lines[2], /^upstream\.tls\.ca: ".*" does not exist; name a PEM file$/)
  t.match(problems({ cert: key, key: cert }), /listen\.tls\.cert: .* is not a usable PEM file/)
})

t.test('a missing file is reported together with other errors, at its route', async t => {
  const cwd = t.testdir({})
  const config = {
    upstream: 'http://127.0.0.1:9',
    buckets: { client: { key: 'ip', rate: 'fast' } },
    routes: [{ upstream: { url: 'https://127.0.0.1:1', tls: { ca: `${cwd}/none` } } }],
  }
  writeFileSync(`${cwd}/config.json`, JSON.stringify(config))
  t.throws(
    () => loadConfig({ file: `${cwd}/config.json`, flags: {}, env: {}, cwd }),
    /buckets\.client\.rate: .*\n.*routes\[0\]\.upstream\.tls\.ca: ".*none" does not exist; name a PEM file/,
  )
})

t.test('the message of a missing relative file tells where it was looked for: in the current directory', async t => {
  const cwd = t.testdir({})
  const listen = { address: '127.0.0.1:0', tls: { cert: 'none.pem', key: '/none/key.pem' } }
  writeFileSync(
    `${cwd}/config.json`,
    JSON.stringify({ listen, upstream: 'echo:', buckets: { client: { rate: '5/s' } } }),
  )
  t.same(
    linesOf(() => loadConfig({ file: `${cwd}/config.json`, flags: {}, env: {}, cwd })),
    [
      `listen.tls.cert: "none.pem" does not exist (looked for at ${JSON.stringify(join(process.cwd(), 'none.pem'))}); name a PEM file`,
      'listen.tls.key: "/none/key.pem" does not exist; name a PEM file',
    ],
  )
})

t.test('paths of Unix sockets: what is there already, and the folder', async t => {
  const folder = socketFolder(t)
  mkdirSync(join(folder, 'folder'))
  writeFileSync(join(folder, 'file'), '')
  const problems = (config: object): string[] => {
    const file = join(folder, 'config.json')
    writeFileSync(file, JSON.stringify({ upstream: 'echo:', buckets: { client: { rate: '5/s' } }, ...config }))
    return linesOf(() => loadConfig({ file, flags: {}, env: {}, cwd: folder }))
  }
  const at = (path: string): string => `unix:${folder}${path}`
  const shown = (path: string): string => JSON.stringify(at(path))
  t.same(problems({ listen: at('/a.sock'), upstream: at('/none/b.sock'), admin: { listen: at('/c.sock') } }), [])
  t.same(problems({ listen: at('/folder'), upstream: { url: at('') } }), [
    `listen: ${shown('/folder')} is a directory; name a file in it, e.g. ${shown('/folder/app.sock')}`,
    `upstream.url: ${shown('')} is a directory; name a file in it, e.g. ${shown('/app.sock')}`,
  ])
  t.same(problems({ upstream: at('') }), [
    `upstream: ${shown('')} is a directory; name a file in it, e.g. ${shown('/app.sock')}`,
  ])
  t.same(problems({ admin: { listen: at('/file') } }), [
    `admin.listen: ${shown('/file')} is a file, and no socket; name another path, or remove the file`,
  ])
  t.same(problems({ listen: [':1', { address: at('/none/a.sock') }] }), [
    `listen[1].address: ${shown('/none/a.sock')} needs the folder "${folder}/none", which this program cannot find; create it, or name another path`,
  ])
})

t.test('the file for levels: each fault with its place and its remedy', async t => {
  const cwd = t.testdir({
    'good.json': '{"shaperLevels":7,',
    'empty.json': '',
    'other.json': '{"name":"package"}',
    folder: {},
    link: t.fixture('symlink', 'nowhere'),
  })
  const problems = (named: string): string[] => {
    const file = join(cwd, 'config.json')
    const config = { upstream: 'echo:', buckets: { client: { rate: '5/s' } }, store: { type: 'memory', file: named } }
    writeFileSync(file, JSON.stringify(config))
    return linesOf(() => loadConfig({ file, flags: {}, env: {}, cwd })).map(line => line.replaceAll(cwd, ''))
  }
  for (const fine of ['good.json', 'empty.json', 'new.json', 'folder/new.json', 'link'])
    t.same(problems(join(cwd, fine)), [], fine)
  t.same(problems(join(cwd, 'other.json')), [
    'store.file: "/other.json" is there and was not written by this program; name another path, or remove it',
  ])
  t.same(problems(join(cwd, 'folder')), [
    'store.file: "/folder" is a directory; name a file in it, e.g. "/folder/levels.json"',
  ])
  t.same(problems(join(cwd, 'none/new.json')), [
    'store.file: "/none/new.json" needs the folder "/none", which this program cannot find; create it, or name another path',
  ])
  t.same(problems('/dev/full'), [
    'store.file: "/dev/full" is there and was not written by this program; name another path, or remove it',
  ])
})

const isRoot = process.getuid?.() === 0

t.test('a folder in which this program may not write', { skip: isRoot && 'root writes everywhere' }, async t => {
  const cwd = t.testdir({ folder: {} })
  chmodSync(join(cwd, 'folder'), 0o500)
  const file = join(cwd, 'config.json')
  const config = { upstream: 'echo:', buckets: { client: { rate: '5/s' } } }
  writeFileSync(file, JSON.stringify({ ...config, store: { type: 'memory', file: join(cwd, 'folder/new.json') } }))
  t.match(
    linesOf(() => loadConfig({ file, flags: {}, env: {}, cwd })),
    [
      /^store\.file: ".*new\.json" cannot be written, as this program may not write in the folder ".*folder" \(EACCES\); give it to/,
    ],
  )
})

t.test('templates of waiting pages: each fault with its place and its remedy', async t => {
  const cwd = t.testdir({
    'good.html': '<head>{{script}}</head>{{wait}} {{ position }} {{wait}} { { } }}',
    'bare.html': '<h1>Wait</h1>',
    'twice.html': '{{script}}{{ script }}',
    'odd.html': '{{script}} {{waits}}',
    'else.html': '{{script}} {{user name}}',
    'big.html': `{{script}}${'x'.repeat(65_536)}`,
  })
  const problems = (own: object, top: object = {}): string[] => {
    const routes = [{ name: 'all', ...own }]
    writeFileSync(
      `${cwd}/config.json`,
      JSON.stringify({ upstream: 'echo:', buckets: { a: { rate: 1 } }, routes, ...top }),
    )
    return linesOf(() => loadConfig({ file: `${cwd}/config.json`, flags: {}, env: {}, cwd }))
  }
  const of = (name: string) => ({ waitingPage: { template: `${cwd}/${name}` } })
  const at = (name: string, what: string): string =>
    `routes[0].waitingPage.template: ${JSON.stringify(`${cwd}/${name}`)} ${what}`
  t.same(problems(of('good.html')), [])
  t.same(problems({}, of('good.html')), [])
  t.same(problems(of('none.html')), [at('none.html', 'does not exist; name an HTML file')])
  t.same(problems(of('bare.html')), [
    at('bare.html', 'has no {{script}}, by which the page waits and comes back; add it before </head>'),
  ])
  t.same(problems(of('twice.html')), [at('twice.html', 'has {{script}} more than once; keep one, before </head>')])
  t.same(problems(of('odd.html')), [at('odd.html', 'has an unknown placeholder "{{waits}}"; did you mean "wait"?')])
  t.same(problems(of('else.html')), [
    at('else.html', 'has an unknown placeholder "{{user name}}"; placeholders: script, wait, position'),
  ])
  t.same(problems(of('big.html')), [
    at('big.html', 'has 65546 bytes, and every rejected browser gets them; keep it below 65537'),
  ])
  t.same(problems({}, of('none.html')), [
    `waitingPage.template: ${JSON.stringify(`${cwd}/none.html`)} does not exist; name an HTML file`,
  ])
  problems(of('good.html'))
  const { settings } = loadConfig({ file: `${cwd}/config.json`, flags: {}, env: {}, cwd })
  const before = usedFiles(settings, settings.listen)
  writeFileSync(`${cwd}/good.html`, '{{script}}')
  const name = `waitingPage.template: ${cwd}/good.html was read again`
  t.same(changedFiles(before, usedFiles(settings, settings.listen)), [name], 'a reload tells of a new text')
})
