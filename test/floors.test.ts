/**
 * Rules of the source tree. Imports point down and form no cycle. The core uses no clock, no timer and nothing of Node. No
 * function takes a boolean beside other parameters.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import t from 'tap'
import ts from 'typescript'
import { ROOT } from './cli/command.js'

const FLOORS: Record<string, number> = {
  core: 0,
  decider: 0,
  http: 0,
  pacing: 1,
  config: 1,
  stores: 1,
  sharing: 1,
  proxy: 2,
  outbound: 2,
  replay: 2,
  deliver: 2,
  'index.ts': 2.5,
  admin: 3,
  cli: 4,
}

/** Arithmetic on numbers: no clock, no timer, nothing of Node. */
const PURE = ['core', 'decider']

/** The folders that index.ts may import from. */
const INDEX_SOURCES = ['core', 'config', 'sharing', 'outbound']

const NOT_IN_CORE = new Set([
  ...['Date', 'performance', 'process', 'require'],
  ...['setTimeout', 'setInterval', 'setImmediate', 'queueMicrotask'],
])

/** Texts by path below src, e.g. `core/bucket/queued-bucket.ts`. */
type Files = Record<string, string>

function topFolder(path: string): string {
  return path.split('/')[0]!
}

/** The specifiers of all imports and re-exports of a file, with those of types and dynamic imports. */
function imports(path: string, text: string): string[] {
  return nodesOf(path, text).flatMap(specifierOf)
}

function specifierOf(node: ts.Node): string[] {
  if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node)) {
    return node.moduleSpecifier === undefined ? [] : [(node.moduleSpecifier as ts.StringLiteral).text]
  }
  if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument)) {
    return [(node.argument.literal as ts.StringLiteral).text]
  }
  if (!ts.isCallExpression(node) || node.expression.kind !== ts.SyntaxKind.ImportKeyword) return []
  const [argument] = node.arguments
  return [argument !== undefined && ts.isStringLiteralLike(argument) ? argument.text : '<computed>']
}

/** All nodes of a file, parents before children. */
function nodesOf(path: string, text: string): ts.Node[] {
  const found: ts.Node[] = []
  const visit = (node: ts.Node): void => {
    found.push(node)
    ts.forEachChild(node, visit)
  }
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.ES2023, true))
  return found
}

/** The errors of a file's imports, and the files that it imports. */
function importFaults(path: string, files: Files): { faults: string[]; targets: string[] } {
  const specifiers = imports(path, files[path]!)
  const packages = specifiers.filter(specifier => !specifier.startsWith('.'))
  const local = specifiers.filter(specifier => specifier.startsWith('.'))
  return {
    faults: [
      ...(PURE.includes(topFolder(path)) ? packages.map(name => `${path} imports ${name}`) : []),
      ...local.flatMap(specifier =>
        reasonsAgainst(path, specifier, files).map(why => `${path} imports ${specifier}, ${why}`),
      ),
    ],
    targets: local.map(specifier => targetOf(path, specifier)).filter(target => !target.startsWith('../')),
  }
}

function targetOf(path: string, specifier: string): string {
  return posix.join(posix.dirname(path), specifier).replace(/\.js$/, '.ts')
}

function reasonsAgainst(path: string, specifier: string, files: Files): string[] {
  const target = targetOf(path, specifier)
  if (target.startsWith('../')) return topFolder(path) === 'cli' ? [] : ['which is outside']
  const isMissing = files[target] === undefined && specifier.endsWith('.js')
  return [...(isMissing ? ['which is not there'] : []), ...(isBelow(path, target) ? [] : ['which is not below'])]
}

/** Whether a file may import another. */
function isBelow(path: string, target: string): boolean {
  if (path === 'index.ts' && !INDEX_SOURCES.includes(topFolder(target))) return false
  return (FLOORS[topFolder(target)] ?? Infinity) <= FLOORS[topFolder(path)]!
}

function violations(files: Files): string[] {
  const found: string[] = []
  const edges = new Map<string, string[]>()
  for (const [path, text] of Object.entries(files)) {
    if (FLOORS[topFolder(path)] === undefined) {
      found.push(`${path} is on no floor`)
      continue
    }
    const { faults, targets } = importFaults(path, files)
    found.push(...faults)
    edges.set(path, targets)
    if (!PURE.includes(topFolder(path))) continue
    const names = new Set(nodesOf(path, text).flatMap(node => (ts.isIdentifier(node) ? node.text : [])))
    for (const name of names) if (NOT_IN_CORE.has(name)) found.push(`${path} uses ${name}`)
  }
  return [...found, ...cycles(edges), ...cycles(betweenFolders(edges))]
}

/**
 * Functions and methods with a boolean beside other parameters, as `path: parameter`: a caller's `true` does not say what
 * it means. Parameters without a type annotation are those of callbacks with a type from elsewhere.
 */
function bareBooleans(path: string, text: string): string[] {
  return nodesOf(path, text).flatMap(node => {
    const { parameters = [] } = node as { parameters?: readonly ts.ParameterDeclaration[] }
    if (parameters.length < 2) return []
    return parameters.filter(isBoolean).map(({ name }) => `${path}: ${name.getText()}`)
  })
}

/**
 * Tables that are indexed by a text, as `path: code`. A client may say `constructor`, which every object has: a Map, or `ownValue`,
 * has not. It finds `table[text]` and `text in table` of TypeScript. Fine are an index whose type is numbers, symbols, literals or a
 * type parameter (the keys of a type), and what the same function asks `Object.hasOwn` about. It sees neither `any`, nor
 * destructuring, nor the scripts of the dashboard, which have no types.
 */
function openTables(program: ts.Program): string[] {
  const checker = program.getTypeChecker()
  const isOpen = (index: ts.Expression): boolean => {
    const type = checker.getTypeAtLocation(index)
    const types = type.isUnion() ? type.types : [type]
    return types.some(each => each.isIntersection() || (each.flags & ts.TypeFlags.String) !== 0)
  }
  const isAsked = (node: ts.Node, table: string, index: string): boolean => {
    const { body } = (ts.findAncestor(node, ts.isFunctionLike) ?? {}) as { body?: ts.Node }
    return body?.getText().includes(`Object.hasOwn(${table}, ${index})`) === true
  }
  const found: string[] = []
  for (const file of program.getSourceFiles()) {
    const path = posix.relative(posix.join(ROOT, 'src'), file.fileName)
    if (path.startsWith('../') || INDEXES_ITS_OWN.has(path)) continue
    const visit = (node: ts.Node): void => {
      ts.forEachChild(node, visit)
      const isIn = ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.InKeyword
      if (!isIn && !ts.isElementAccessExpression(node)) return
      const [table, index] = ts.isBinaryExpression(node)
        ? [node.right, node.left]
        : [node.expression, node.argumentExpression]
      if (isOpen(index) && !isAsked(node, table.getText(), index.getText())) found.push(`${path}: ${node.getText()}`)
    }
    visit(file)
  }
  return found
}

/** Their texts index objects without a prototype, or are names of our own types. */
const INDEXES_ITS_OWN = new Set(['proxy/http/http2.ts', 'stores/workers/frames.ts'])

function isBoolean({ type, initializer }: ts.ParameterDeclaration): boolean {
  if (type === undefined) {
    return initializer?.kind === ts.SyntaxKind.TrueKeyword || initializer?.kind === ts.SyntaxKind.FalseKeyword
  }
  const types = ts.isUnionTypeNode(type)
    ? type.types.filter(each => each.kind !== ts.SyntaxKind.UndefinedKeyword)
    : [type]
  return types.every(each => each.kind === ts.SyntaxKind.BooleanKeyword)
}

/** The imports between sub-folders. Files directly in a top folder are left out: they may use all, and all may use them. */
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

/** One line for each cycle that a depth-first walk finds. */
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

/** Paths of all files below a folder of the repository. */
function below(folder: string): string[] {
  const paths = readdirSync(`${ROOT}/${folder}`, { recursive: true, encoding: 'utf8' })
  return paths.map(path => `${folder}/${path}`)
}

/** Where a document's paths may begin. */
const STARTS = ['', 'src/', 'test/']

/**
 * The paths in a document's backticks that do not exist. A path begins with a folder of the repository, of src or of test.
 * A source file may be named without its folder.
 */
function missingPaths(text: string): string[] {
  const sources = [...below('src'), ...below('test')]
  const names = new Set(sources.map(path => posix.basename(path)))
  const folders = [...sources.map(path => path.split('/')[1]!), ...readdirSync(ROOT)].filter(
    name => !name.includes('.'),
  )
  const starts = new Set(folders)
  return [...text.matchAll(/`([\w.-]+(?:\/[\w.-]+)*\/?)`/g)]
    .map(([, path]) => path!)
    .filter(path => {
      if (!path.includes('/')) return /\.(ts|lua|sql)$/.test(path) && !names.has(path)
      return starts.has(topFolder(path)) && !STARTS.some(start => existsSync(`${ROOT}/${start}${path}`))
    })
}

t.test('imports point down and form no cycle', async t => {
  const files = read()
  t.ok(Object.keys(files).includes('core/shaper.ts'))
  t.same(violations(files), [])
})

t.test('ARCHITECTURE.md names every top folder, and no folder that does not exist, with its floor', async t => {
  const text = readFileSync(`${ROOT}/ARCHITECTURE.md`, 'utf8')
  const rows = [...text.matchAll(/^\| (\d) \| `([a-z0-9/]+)` \|/gm)].map(([, floor, folder]) => ({
    floor,
    folder: folder!,
  }))
  const folders = new Set(Object.keys(read()).flatMap(path => [posix.dirname(path), topFolder(path)]))
  t.same(
    rows.filter(({ floor, folder }) => !folders.has(folder) || Number(floor) !== FLOORS[topFolder(folder)]),
    [],
  )
  const named = rows.map(({ folder }) => folder)
  t.same(
    Object.keys(FLOORS).filter(name => !name.includes('.') && !named.includes(name)),
    [],
  )
})

t.test('the picture of the architecture names every top folder, and no folder that does not exist', async t => {
  const text = readFileSync(`${ROOT}/docs/architecture.svg`, 'utf8')
  const named = [...text.matchAll(/(?<![</\w])([a-z][a-z0-9]*)\/(?=[,<\s])/g)].map(([, name]) => name!)
  const folders = new Set(Object.keys(read()).flatMap(path => path.split('/').slice(0, -1)))
  t.same(
    named.filter(name => !folders.has(name)),
    [],
  )
  t.same(
    Object.keys(FLOORS).filter(name => !name.includes('.') && !named.includes(name)),
    [],
  )
})

t.test('documents name only files and folders that exist', async t => {
  const documents = [
    'ARCHITECTURE.md',
    'CONTRIBUTING.md',
    'README.md',
    ...below('docs').filter(path => path.endsWith('.md')),
  ]
  const faults = documents.flatMap(path =>
    missingPaths(readFileSync(`${ROOT}/${path}`, 'utf8')).map(name => `${path}: ${name}`),
  )
  t.same(faults, [])
  const wrong = '`src/core/bucket/bucket.ts`, `test/no.test.ts`, `replay/none/`, `gone.ts`, `docs/gone.md`'
  t.same(missingPaths(`${wrong}, and \`core/shaper.ts\`, \`wire.ts\`, \`/metrics\``), [
    'src/core/bucket/bucket.ts',
    'test/no.test.ts',
    'replay/none/',
    'gone.ts',
    'docs/gone.md',
  ])
})

t.test('the check finds every kind of violation', async t => {
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
    ['decider/b.ts', 'export const b = Date.now()', 'decider/b.ts uses Date'],
    ['core/b.ts', 'export const b = Date.now()', 'core/b.ts uses Date'],
    ['core/b.ts', 'export const b = () => setTimeout(() => {}, 1)', 'core/b.ts uses setTimeout'],
    ['core/b.ts', 'export const b = globalThis.performance.now()', 'core/b.ts uses performance'],
  ]
  for (const [path, text, complaint] of broken)
    t.ok(violations({ ...sound, [path]: text }).includes(complaint), complaint)
})

t.test('no function takes a boolean beside other parameters', async t => {
  const found = Object.entries(read()).flatMap(([path, text]) => bareBooleans(path, text))
  t.same(found, [])
  const text = `
    function a(only: boolean) {}
    function b(x: number, bare: boolean) {}
    function c(bareDefault = true, x: number) {}
    interface D { d(bareOrNone: boolean | undefined, x: number): void }
    function e(x: number, { named }: { named: boolean }) {}
    class F { constructor(x: number, readonly bareMember?: boolean) {} }
    function g(x: number, kind: 'on' | 'off', other: boolean | string) {}
    list.map((x, callback) => callback)
  `
  t.same(bareBooleans('a.ts', text), ['a.ts: bare', 'a.ts: bareDefault', 'a.ts: bareOrNone', 'a.ts: bareMember'])
})

t.test('long: no table is indexed by a text that may be `constructor`', async t => {
  const { options } = ts.parseJsonConfigFileContent(
    ts.readConfigFile(`${ROOT}tsconfig.json`, ts.sys.readFile).config,
    ts.sys,
    ROOT,
  )
  const paths = Object.keys(read()).filter(path => path.endsWith('.ts'))
  const names = paths.map(path => posix.join(ROOT, 'src', path))
  t.same(openTables(ts.createProgram(names, options)), [])
  const text = `
    type Table = Record<string, number>
    const bad = (table: Table, name: string) => table[name]
    const write = (table: Table, name: string) => { table[name] = 1 }
    const asked = (table: Table, name: string) => name in table
    const unsure = (table: Table, name: 'a' | (string & {})) => table[name]
    const good = (table: Table, name: 'a' | 'b', place: number, list: number[]) => [table[name], list[place], table.c]
    const known = (table: Table, name: string) => (Object.hasOwn(table, name) ? table[name] : 0)
    const generic = <K extends string>(table: Record<K, number>, key: K) => table[key]
  `
  const file = posix.join(ROOT, 'src', 'a.ts')
  const host = ts.createCompilerHost(options)
  const { getSourceFile } = host
  host.getSourceFile = (name, ...rest) =>
    name === file ? ts.createSourceFile(name, text, ts.ScriptTarget.ES2023, true) : getSourceFile(name, ...rest)
  t.same(openTables(ts.createProgram([file], options, host)), [
    ...['a.ts: table[name]', 'a.ts: table[name]', 'a.ts: name in table', 'a.ts: table[name]'],
  ])
})

t.test('each exported name stands for one thing', async t => {
  const homes = new Map<string, Set<string>>()
  for (const [path, text] of Object.entries(read())) {
    const exported = /^export (?:abstract |async )?(?:class|const|enum|function\*?|interface|let|type) (\w+)/gm
    for (const [, name] of text.matchAll(exported)) homes.set(name!, (homes.get(name!) ?? new Set()).add(path))
  }
  t.ok(homes.size > 500)
  const doubles = [...homes].filter(([, paths]) => paths.size > 1)
  t.same(
    doubles.map(([name, paths]) => `${name}: ${[...paths].join(', ')}`),
    [],
  )
})
