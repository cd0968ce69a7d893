// Plants bugs one at a time and looks which tests fail: `node test/mutations/main.js [--count 100] [--seed 1] [--worlds 0] [FOLDER...]`, after
// `npm run build:test`. A bug is a changed operator or number, a dropped call, a swapped branch. It is planted in a copy of build/, in code
// of the given folders (default: core, decider, sharing and proxy), by a random choice that the seed repeats. Only tests that reach the
// place run, the quickest first, up to the first that fails. `--worlds N` also asks the first N worlds. It prints a line for each that survives.
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import fc from 'fast-check'
import ts from 'typescript'
import { SHARED } from '../tiers.js'

const root = fileURLToPath(new URL('../..', import.meta.url))
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    count: { type: 'string', default: '100' },
    seed: { type: 'string', default: '1' },
    worlds: { type: 'string', default: '0' },
  },
})
const folders = positionals.length > 0 ? positionals : ['src/core', 'src/decider', 'src/sharing', 'src/proxy']
/** How many bugs at a time, each in a copy of its own. */
const JOBS = 2

const OPERATORS = {
  ...{ '+': '-', '-': '+', '*': '/', '/': '*', '+=': '-=', '-=': '+=' },
  ...{ '<': '<=', '<=': '<', '>': '>=', '>=': '>', '===': '!==', '!==': '===', '&&': '||', '||': '&&' },
}

/** What each kind of bug changes in a node. Undefined: it is of another kind. */
const KINDS = [
  node => {
    if (!ts.isBinaryExpression(node) || isText(node.left) || isText(node.right)) return undefined
    const to = OPERATORS[node.operatorToken.getText()]
    return to && { node: node.operatorToken, to }
  },
  node =>
    ts.isPrefixUnaryExpression(node) && node.operator === ts.SyntaxKind.ExclamationToken
      ? { node, to: `(${node.operand.getText()})` }
      : undefined,
  node =>
    ts.isConditionalExpression(node)
      ? { node, to: `${node.condition.getText()} ? ${node.whenFalse.getText()} : ${node.whenTrue.getText()}` }
      : undefined,
  node =>
    ts.isExpressionStatement(node) && ts.isCallExpression(node.expression) && !isSuper(node.expression.expression)
      ? { node, to: ';' }
      : undefined,
  node => (ts.isNumericLiteral(node) ? { node, to: `${Number(node.getText().replaceAll('_', '')) + 1}` } : undefined),
  node => (node.kind === ts.SyntaxKind.TrueKeyword ? { node, to: 'false' } : undefined),
  node => (node.kind === ts.SyntaxKind.FalseKeyword ? { node, to: 'true' } : undefined),
  node =>
    /^Math\.min$/.test(node.getText()) && ts.isPropertyAccessExpression(node) ? { node, to: 'Math.max' } : undefined,
  node =>
    /^Math\.max$/.test(node.getText()) && ts.isPropertyAccessExpression(node) ? { node, to: 'Math.min' } : undefined,
]

const testFiles = filesIn('build/test')
  .filter(path => path.endsWith('.test.js') && SHARED.some(start => path.startsWith(`build/test/${start}`)))
  .sort()
const sources = folders.flatMap(folder => filesIn(join('build', folder)).filter(path => path.endsWith('.js')))
const sites = sources.flatMap(sitesOf)
const chosen = fc
  .sample(fc.shuffledSubarray(sites, { minLength: Math.min(sites.length, Number(values.count)) }), {
    numRuns: 1,
    seed: Number(values.seed),
  })[0]
  .slice(0, Number(values.count))
console.log(`# ${chosen.length} of ${sites.length} places in ${sources.length} files, ${testFiles.length} test files`)

const reached = await reachedBy(testFiles)
const counts = { caught: 0, 'caught by the world alone': 0, survived: 0 }
const waiting = [...chosen]
await Promise.all(Array.from({ length: JOBS }, (_, job) => work(`build-mutated-${job}`)))
for (const [what, count] of Object.entries(counts)) console.log(`# ${what}: ${count}`)

async function work(copy) {
  cpSync(join(root, 'build/src'), join(root, copy, 'src'), { recursive: true })
  cpSync(join(root, 'build/test'), join(root, copy, 'test'), { recursive: true })
  for (let site = waiting.shift(); site !== undefined; site = waiting.shift()) {
    const target = join(root, copy, relative('build', site.path))
    const text = readFileSync(join(root, site.path), 'utf8')
    writeFileSync(target, text.slice(0, site.start) + site.with + text.slice(site.end))
    const tests = reached
      .filter(({ places }) => places.includes(sites.indexOf(site)))
      .sort((one, other) => one.ms - other.ms)
    const by = await firstFailure(copy, tests)
    const isSeen = by === undefined && Number(values.worlds) > 0 && (await failsWorlds(copy))
    if (by !== undefined) counts.caught += 1
    else if (isSeen) counts['caught by the world alone'] += 1
    else counts.survived += 1
    const line = text.slice(text.lastIndexOf('\n', site.start) + 1, text.indexOf('\n', site.end)).trim()
    const change = `${text.slice(site.start, site.end).trim().slice(0, 60)} -> ${site.with || '(dropped)'}`
    const end = by ?? (isSeen ? 'the world' : `SURVIVED ${tests.length} files`)
    console.log(`${end}: ${site.path.slice('build/'.length)}: ${change} in: ${line.slice(0, 140)}`)
    writeFileSync(target, text)
  }
  rmSync(join(root, copy), { recursive: true })
}

async function firstFailure(copy, tests) {
  for (const { path, ms } of tests) {
    const status = await run(['scripts/test-files.js', path.replace('build/', `${copy}/`)], Math.ceil(20_000 + 10 * ms))
    if (status !== 0) return path.slice('build/test/'.length)
  }
  return undefined
}

async function failsWorlds(copy) {
  return (await run([join(copy, 'test/world/run.js'), '1', values.worlds], 600_000)) !== 0
}

/** @returns the exit status; 1 if it takes longer */
async function run(args, timeout, env = {}) {
  const child = spawn(process.execPath, args, {
    cwd: root,
    stdio: 'ignore',
    timeout,
    killSignal: 'SIGKILL',
    env: {
      ...process.env,
      SHAPER_RUNS: '0.1',
      TAP_GREP: '/^long: /',
      TAP_INVERT: '1',
      TAP_BAIL: '1',
      TAP_TIMEOUT: `${timeout / 1_000}`,
      ...env,
    },
  })
  const [code] = await once(child, 'exit')
  return code ?? 1
}

/** How long each test file takes, and which of the places it reaches. Kept in build/, as it takes as long as the tests. */
async function reachedBy(paths) {
  const texts = [...sources, ...paths].map(path => readFileSync(join(root, path), 'utf8'))
  const kept = join(root, `build/reached-${createHash('sha256').update(texts.join()).digest('hex').slice(0, 16)}.json`)
  if (existsSync(kept)) return JSON.parse(readFileSync(kept, 'utf8'))
  const lengths = new Map(sources.map(path => [path, readFileSync(join(root, path), 'utf8').length]))
  const found = []
  const left = [...paths]
  const measure = async () => {
    for (let path = left.shift(); path !== undefined; path = left.shift()) {
      const folder = mkdtempSync(join(tmpdir(), 'mutations-'))
      const begin = performance.now()
      const status = await run(['scripts/test-files.js', path], 300_000, { NODE_V8_COVERAGE: folder })
      const ranges = rangesIn(folder)
      rmSync(folder, { recursive: true })
      if (status !== 0) console.log(`# ${path} fails by itself, and is left out`)
      else {
        const ran = new Map(Array.from(ranges, ([path, lists]) => [path, ranIn(lists, lengths.get(path))]))
        const places = sites.flatMap(({ path, start }, at) => (ran.get(path)?.[start] ? [at] : []))
        found.push({ path, ms: performance.now() - begin, places })
      }
    }
  }
  await Promise.all(Array.from({ length: JOBS }, measure))
  writeFileSync(kept, JSON.stringify(found))
  return found
}

function rangesIn(folder) {
  const ranges = new Map()
  for (const name of readdirSync(folder)) {
    for (const { url, functions } of JSON.parse(readFileSync(join(folder, name), 'utf8')).result) {
      const path = url.startsWith(pathToFileURL(root).href) ? relative(root, fileURLToPath(url)) : ''
      if (sources.includes(path))
        ranges.set(path, [...(ranges.get(path) ?? []), functions.flatMap(each => each.ranges)])
    }
  }
  return ranges
}

/** For each place of a text whether it was run. The smallest range around it counts. There is a list for each process that has loaded it. */
function ranIn(lists, length) {
  const ran = new Uint8Array(length)
  for (const list of lists) {
    const here = new Uint8Array(length)
    const size = ({ startOffset, endOffset }) => endOffset - startOffset
    list.sort((one, other) => size(other) - size(one))
    for (const { startOffset, endOffset, count } of list) here.fill(count > 0 ? 1 : 0, startOffset, endOffset)
    for (const [at, value] of here.entries()) ran[at] |= value
  }
  return ran
}

/** Where bugs can be planted: a part of the text, and what takes its place. */
function sitesOf(path) {
  const text = readFileSync(join(root, path), 'utf8')
  const file = ts.createSourceFile(path, text, ts.ScriptTarget.ESNext, true)
  const found = []
  const visit = node => {
    if (ts.isThrowStatement(node) || ts.isImportDeclaration(node)) return
    const changed = KINDS.flatMap(kind => kind(node) ?? [])[0]
    if (changed !== undefined)
      found.push({ path, start: changed.node.getStart(), end: changed.node.end, with: changed.to })
    ts.forEachChild(node, visit)
  }
  visit(file)
  return found
}

function isSuper(node) {
  return node.kind === ts.SyntaxKind.SuperKeyword
}

function isText(node) {
  return ts.isStringLiteral(node) || ts.isTemplateExpression(node) || ts.isNoSubstitutionTemplateLiteral(node)
}

function filesIn(folder) {
  const entries = readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
  return entries.filter(entry => entry.isFile()).map(entry => relative(root, join(entry.parentPath, entry.name)))
}
