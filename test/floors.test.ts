/** Imports only ever point down, never in a circle; the core knows no clock, no timer and nothing of Node. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import t from 'tap'
import ts from 'typescript'
import { ROOT } from './cli/command.js'

const FLOORS: Record<string, number> = {
  core: 0,
  http: 0,
  pacing: 1,
  config: 1,
  stores: 1,
  sharing: 1,
  proxy: 2,
  outbound: 2,
  replay: 2,
  'index.ts': 2.5,
  admin: 3,
  cli: 4,
}

/** What the public names may be taken from. */
const INDEX_SOURCES = ['core', 'config', 'outbound']

const NOT_IN_CORE = new Set([
  ...['Date', 'performance', 'process', 'require'],
  ...['setTimeout', 'setInterval', 'setImmediate', 'queueMicrotask'],
])

/** By path below src, e.g. `core/bucket/bucket.ts`. */
type Files = Record<string, string>

function room(path: string): string {
  return path.split('/')[0]!
}

/** What a file imports, re-exports or names in a type, dynamic imports included. */
function imports(path: string, text: string): string[] {
  const found: string[] = []
  const visit = (node: ts.Node): void => {
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node)) {
      if (node.moduleSpecifier !== undefined) found.push((node.moduleSpecifier as ts.StringLiteral).text)
    } else if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument)) {
      found.push((node.argument.literal as ts.StringLiteral).text)
    } else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
      const [argument] = node.arguments
      found.push(argument !== undefined && ts.isStringLiteralLike(argument) ? argument.text : '<computed>')
    }
    ts.forEachChild(node, visit)
  }
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.ES2023, true))
  return found
}

function names(path: string, text: string): Set<string> {
  const found = new Set<string>()
  const visit = (node: ts.Node): void => {
    if (ts.isIdentifier(node)) found.add(node.text)
    ts.forEachChild(node, visit)
  }
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.ES2023, true))
  return found
}

function violations(files: Files): string[] {
  const found: string[] = []
  const edges = new Map<string, string[]>()
  for (const [path, text] of Object.entries(files)) {
    const below: string[] = []
    edges.set(path, below)
    const floor = FLOORS[room(path)]
    if (floor === undefined) {
      found.push(`${path} is on no floor`)
      continue
    }
    for (const specifier of imports(path, text)) {
      if (!specifier.startsWith('.')) {
        if (room(path) === 'core') found.push(`${path} imports ${specifier}`)
        continue
      }
      const target = posix.join(posix.dirname(path), specifier).replace(/\.js$/, '.ts')
      if (target.startsWith('../')) {
        if (floor < 4) found.push(`${path} imports ${specifier}, which is outside`)
        continue
      }
      if (files[target] === undefined && specifier.endsWith('.js'))
        found.push(`${path} imports ${specifier}, which is not there`)
      const height = FLOORS[room(target)]
      const allowed = path !== 'index.ts' || INDEX_SOURCES.includes(room(target))
      if (height === undefined || height > floor || !allowed)
        found.push(`${path} imports ${specifier}, which is not below`)
      below.push(target)
    }
    if (room(path) === 'core') {
      for (const name of names(path, text)) if (NOT_IN_CORE.has(name)) found.push(`${path} uses ${name}`)
    }
  }
  return [...found, ...cycles(edges), ...cycles(betweenFolders(edges))]
}

/** The sub-folders of a room and what they import of each other. What stands beside them may use all, and be used by all. */
function betweenFolders(edges: Map<string, string[]>): Map<string, string[]> {
  const found = new Map<string, string[]>()
  for (const [path, below] of edges) {
    const folder = posix.dirname(path)
    if (!folder.includes('/')) continue
    const others = below.map(target => posix.dirname(target)).filter(other => other.includes('/') && other !== folder)
    found.set(folder, [...new Set([...(found.get(folder) ?? []), ...others])])
  }
  return found
}

/** One line per circle that a depth-first walk comes upon. */
function cycles(edges: Map<string, string[]>): string[] {
  const found: string[] = []
  const done = new Set<string>()
  const way: string[] = []
  const visit = (path: string): void => {
    const since = way.indexOf(path)
    if (since >= 0) {
      found.push(`circle: ${[...way.slice(since), path].join(' -> ')}`)
      return
    }
    if (done.has(path)) return
    way.push(path)
    for (const next of edges.get(path) ?? []) visit(next)
    way.pop()
    done.add(path)
  }
  for (const path of edges.keys()) visit(path)
  return found
}

function read(): Files {
  const root = `${ROOT}/src`
  const paths = readdirSync(root, { recursive: true, encoding: 'utf8' }).filter(path => path.endsWith('.ts'))
  return Object.fromEntries(paths.map(path => [path, readFileSync(`${root}/${path}`, 'utf8')]))
}

t.test('the house stands', async t => {
  const files = read()
  t.ok(Object.keys(files).includes('core/shaper.ts'))
  t.same(violations(files), [])
})

t.test('ARCHITECTURE.md names every folder, on its floor, and every other name of a file is there', async t => {
  const text = readFileSync(`${ROOT}/ARCHITECTURE.md`, 'utf8')
  const rows = [...text.matchAll(/^\| (\d) \| `([a-z/]+)` \|/gm)].map(([, floor, folder]) => `${floor} ${folder}`)
  const folders = new Set(Object.keys(read()).map(path => posix.dirname(path)))
  folders.delete('.')
  t.same(rows.sort(), [...folders].map(folder => `${FLOORS[room(folder)]} ${folder}`).sort())
  const paths = [
    ...text.matchAll(/`((?:src|core|http|proxy|config|cli|stores|sharing|outbound|pacing)\/[a-z/-]+\.(?:ts|lua))`/g),
  ]
  for (const [, path] of paths) {
    t.ok(existsSync(`${ROOT}/${path!.startsWith('src/') ? path : `src/${path}`}`), path!)
  }
})

t.test('the check finds what it is for', async t => {
  const sound: Files = {
    'core/a.ts': `/** Not setTimeout, not Date, not node:fs. */ import { b } from './b.js'\nexport const a = 'Date' + b`,
    'core/b.ts': 'export const b = 1',
    'core/x/a.ts': '',
    'core/x/b.ts': '',
    'core/y/a.ts': `import '../x/a.js'`,
    'config/c.ts': `import { readFile } from 'node:fs'\nimport { a } from '../core/a.js'\nexport const c = setTimeout`,
    'proxy/p.ts': `import type { c } from '../config/c.js'`,
    'outbound/o.ts': `export * from '../core/a.js'`,
    'index.ts': `export { o } from './outbound/o.js'\nexport { a } from './core/a.js'`,
    'admin/s.ts': `import '../proxy/p.js'`,
    'cli/main.ts': `import '../admin/s.js'\nimport '../core/a.js'\nconst later = await import('../proxy/p.js')`,
  }
  t.same(violations(sound), [])
  const broken: [path: string, text: string, complaint: string][] = [
    ['core/a.ts', `import { c } from '../config/c.js'`, 'core/a.ts imports ../config/c.js, which is not below'],
    ['core/a.ts', `import type { c } from '../config/c.js'`, 'core/a.ts imports ../config/c.js, which is not below'],
    ['core/a.ts', `export * from '../proxy/p.js'`, 'core/a.ts imports ../proxy/p.js, which is not below'],
    ['core/a.ts', `type C = import('../config/c.js').C`, 'core/a.ts imports ../config/c.js, which is not below'],
    ['config/c.ts', `await import('../proxy/p.js')`, 'config/c.ts imports ../proxy/p.js, which is not below'],
    ['proxy/p.ts', `import '../admin/s.js'`, 'proxy/p.ts imports ../admin/s.js, which is not below'],
    ['proxy/p.ts', `import '../index.js'`, 'proxy/p.ts imports ../index.js, which is not below'],
    ['index.ts', `import './proxy/p.js'`, 'index.ts imports ./proxy/p.js, which is not below'],
    ['index.ts', `import './cli/main.js'`, 'index.ts imports ./cli/main.js, which is not below'],
    ['core/b.ts', `import './gone.js'`, 'core/b.ts imports ./gone.js, which is not there'],
    ['attic/x.ts', '', 'attic/x.ts is on no floor'],
    ['core/b.ts', `import type { a } from './a.js'`, 'circle: core/a.ts -> core/b.ts -> core/a.ts'],
    ['core/b.ts', `export * from './b.js'`, 'circle: core/b.ts -> core/b.ts'],
    ['core/x/b.ts', `import '../y/a.js'`, 'circle: core/x -> core/y -> core/x'],
    ['core/b.ts', `import { readFile } from 'node:fs'`, 'core/b.ts imports node:fs'],
    ['core/b.ts', `import pino from 'pino'`, 'core/b.ts imports pino'],
    ['core/b.ts', 'export const b = Date.now()', 'core/b.ts uses Date'],
    ['core/b.ts', 'export const b = () => setTimeout(() => {}, 1)', 'core/b.ts uses setTimeout'],
    ['core/b.ts', 'export const b = globalThis.performance.now()', 'core/b.ts uses performance'],
  ]
  for (const [path, text, complaint] of broken)
    t.ok(violations({ ...sound, [path]: text }).includes(complaint), complaint)
})
