/**
 * `shaper import` against nginx itself: random trees of locations, and for each of 100 paths the location from which nginx
 * serves it. The route of shaper has to lead to the upstream of that location.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { text as read } from 'node:stream/consumers'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { configText } from '../../src/config/nginx/config-text.js'
import { importNginx } from '../../src/config/nginx/import-nginx.js'
import { matchingPath } from '../../src/http/matching/matching-path.js'
import { createRule } from '../../src/proxy/routing/route.js'
import { runs } from '../runs.js'
import { freePort } from '../servers/free-port.js'

const TREES = runs(1_000)
const PATHS = 100
const SEED = Number(process.env.IMPORT_SEED ?? 20_261_128)
/** The upstream of location N is at this port and N more. */
const FIRST_PORT = 10_000
/** Where requests in no location go. nginx answers them with 404. */
const NOWHERE = 9

interface Tree {
  readonly kind: '=' | '^~' | '~' | '~*' | '' | '@'
  readonly text: string
  readonly isInternal: boolean
  /** The name of a location to go to. */
  readonly tries: string | undefined
  readonly inside: readonly Tree[]
}

const segment = fc.constantFrom('a', 'a', 'b', 'b', 'A', 'b.x', 'c%20')
const prefix = fc
  .tuple(fc.array(segment, { maxLength: 2 }), fc.constantFrom('', '/'))
  .map(([parts, end]) => `/${parts.join('/')}${parts.length > 0 ? end : ''}`.replaceAll('%20', ' '))
const expression = fc.constantFrom(
  '\\.x$',
  '^/a',
  'b',
  '^/a/.*b',
  'a/b',
  '^/(?<first>[ab])/',
  '/a$',
  '^/b/a/',
  '[ab]\\.x',
)
const tries = fc.option(fc.constantFrom('@one', '@two', '/a/b', '/b.x', '/c?q'), { nil: undefined, freq: 6 })
const isInternal = fc.integer({ min: 0, max: 9 }).map(each => each === 0)

/** Locations in a block whose prefix is `within`; with a regular expression around, all are expressions. */
function locations(depth: number, within: string | undefined): fc.Arbitrary<Tree[]> {
  const plain = fc.constantFrom('=', '^~', '' as const)
  const inside = (text: string | undefined) => (depth === 0 ? fc.constant([]) : locations(depth - 1, text))
  const ofExpression = fc
    .record({ kind: fc.constantFrom('~' as const, '~*' as const), text: expression, isInternal, tries })
    .chain(own => inside(undefined).map(list => ({ ...own, inside: list })))
  const ofPrefix = fc.record({ kind: plain, text: prefix, isInternal, tries }).chain(own => {
    const text =
      within === undefined || within === '' ? own.text : `${within}${own.text.slice(within.endsWith('/') ? 1 : 0)}`
    return (own.kind === '=' ? fc.constant([]) : inside(text)).map(list => ({ ...own, text, inside: list }) as Tree)
  })
  const all = within === undefined ? ofExpression : fc.oneof({ weight: 2, arbitrary: ofPrefix }, ofExpression)
  return fc.uniqueArray(all, {
    maxLength: depth === 2 ? 6 : 3,
    // nginx has one location of a prefix.
    selector: ({ kind, text }) => (kind === '' ? '^~' : kind) + text,
  })
}

const trees = locations(2, '')
const paths = fc.array(
  fc
    .tuple(fc.array(segment, { maxLength: 4 }), fc.constantFrom('', '/'))
    .map(([parts, end]) => `/${parts.join('/')}${end}`),
  { minLength: PATHS, maxLength: PATHS },
)

/** A server in two spellings: for nginx each location answers its number, for the import it has an upstream of its own. */
function textOf(tree: readonly Tree[], answer: (id: number) => string): string {
  let count = 0
  const block = ({ kind, text, isInternal, tries, inside }: Tree): string => {
    const own = [
      ...(isInternal ? ['internal;'] : []),
      ...(tries === undefined ? [] : [`try_files /none ${tries};`]),
      tries === undefined ? answer(count++) : '',
      ...inside.map(block),
    ]
    return `location ${kind === '@' ? '' : kind} "${text}" { ${own.join(' ')} }`
  }
  return [...tree, named('@one'), named('@two')].map(block).join('\n')
}

function named(text: string): Tree {
  return { kind: '@', text, isInternal: false, tries: undefined, inside: [] }
}

async function startNginx(t: Test, samples: readonly Tree[][]): Promise<number> {
  const port = await freePort()
  const folder = t.testdir()
  const servers = samples.map((tree, at) => {
    return `server { listen 127.0.0.1:${port}; server_name t${at}.example; ${textOf(tree, id => `return 200 <${id}>;`)} }`
  })
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  writeFileSync(
    `${folder}/nginx.conf`,
    `events {} http { access_log off; keepalive_requests 1000000; server_names_hash_max_size 65536; root ${folder}/empty;
     ${kinds.map(kind => `${kind}_temp_path ${kind};`).join(' ')}
     ${servers.join('\n')} }`,
  )
  const options = 'daemon off; master_process off; pid nginx.pid; error_log stderr emerg;'
  const child = spawn('nginx', ['-e', 'stderr', '-p', folder, '-c', 'nginx.conf', '-g', options], {
    stdio: 'pipe',
    env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin` },
  })
  const errors = read(child.stderr)
  const closed = once(child, 'close').then(async () => {
    throw new Error(`nginx has ended: ${await errors}`)
  })
  closed.catch(() => {})
  t.teardown(async () => {
    child.kill('SIGTERM')
    await closed.catch(() => {})
  })
  const isListening = async (): Promise<boolean> => {
    const socket = connect(port, '127.0.0.1')
    const isOpen = await once(socket, 'connect').then(
      () => true,
      () => false,
    )
    socket.destroy()
    return isOpen
  }
  await Promise.race([
    closed,
    (async () => {
      while (!(await isListening())) await new Promise(resolve => setTimeout(resolve, 20))
    })(),
  ])
  return port
}

/** The number of the location that serves each path; undefined: 404; `circle`: `try_files` leads back. */
async function servedBy(
  port: number,
  host: string,
  list: readonly string[],
): Promise<(number | 'circle' | undefined)[]> {
  const socket = connect(port, '127.0.0.1')
  const requests = list.map(
    (path, at) =>
      `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${at === list.length - 1 ? 'Connection: close\r\n' : ''}\r\n`,
  )
  socket.write(requests.join(''))
  const answers = (await read(socket)).split('HTTP/1.1 ').slice(1)
  const found = answers.map(answer => {
    if (answer.startsWith('500')) return 'circle'
    const [, id] = /<(\d+)>/.exec(answer.startsWith('200') ? answer : '') ?? []
    return id === undefined ? undefined : Number(id)
  })
  // nginx closes the connection after such an answer.
  const rest = found.at(-1) === 'circle' ? list.slice(found.length) : []
  return rest.length === 0 ? found : [...found, ...(await servedBy(port, host, rest))]
}

function routedBy(tree: readonly Tree[], list: readonly string[]): (number | undefined)[] {
  const conf = `server { listen 8080; proxy_pass http://127.0.0.1:${NOWHERE}; ${textOf(tree, id => `proxy_pass http://127.0.0.1:${FIRST_PORT + id};`)} }`
  const { config, notes } = importNginx('nginx.conf', { files: { read: () => conf, list: () => [] } })
  const lost = notes.filter(({ message }) => message.includes('is left out (')).map(({ message }) => message)
  if (lost.length > 0) throw new Error(`${conf}\n${lost.join('\n')}`)
  const { routes } = parseConfig(configText('nginx.conf', config), { env: {} })
  const rules = config.routes.map((each, at) => ({
    rule: createRule(routes[at]!),
    port: each.mode === 'refuse' ? NOWHERE : Number(new URL((each.target ?? config.target).url).port),
  }))
  return list.map(target => {
    const facts = { path: matchingPath(target), target, method: 'GET', host: 'a.example', rawHeaders: [] }
    const port = rules.find(({ rule }) => rule.matches({ facts, address: '192.0.2.1' } as never))?.port
    return port === undefined || port === NOWHERE ? undefined : port - FIRST_PORT
  })
}

t.test('property: random trees of locations lead to where nginx leads', async t => {
  const samples = fc.sample(trees, { numRuns: TREES, seed: SEED })
  const port = await startNginx(t, samples)
  const served = new Set<string>()
  let compared = 0
  let circles = 0
  for (const [at, tree] of samples.entries()) {
    const [list = []] = fc.sample(paths, { numRuns: 1, seed: SEED + at })
    const wanted = await servedBy(port, `t${at}.example`, list)
    const found = routedBy(tree, list)
    for (const [place, path] of list.entries()) {
      if (wanted[place] === 'circle') {
        circles += 1
        continue
      }
      compared += 1
      served.add(`${at} ${wanted[place]}`)
      if (found[place] !== wanted[place]) {
        throw new Error(`${path}: nginx ${wanted[place]}, shaper ${found[place]} of\n${textOf(tree, id => `<${id}>;`)}`)
      }
    }
  }
  t.comment(`${compared} paths, ${served.size} locations, ${circles} circles of try_files`)
  t.equal(compared + circles, TREES * PATHS)
  t.ok(circles < 0.2 * compared, 'few lead in a circle')
  t.ok(served.size > 2 * TREES, 'the paths reach many locations')
})
