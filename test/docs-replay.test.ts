/** The examples of `shaper replay` in docs/guide.md and docs/replay.md are run. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { gunzipSync, gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { FORMATS } from '../src/replay/formats/format-names.js'
import { timeInSecond } from '../src/replay/input/reorder.js'
import { ROOT, shaperHere } from './cli/command.js'
import { blocks } from './docs-code.js'

/** The arguments of a command that needs no shell; undefined: it needs one. */
function wordsOf(line: string): string[] | undefined {
  const command = /^shaper ([^#]*)/.exec(line)?.[1]
  if (command === undefined || /[|<>*$;]/.test(command.replace(/"[^"]*"/g, ''))) return undefined
  return [...command.matchAll(/"([^"]*)"|\S+/g)].map(([word, quoted]) => quoted ?? word)
}

async function runInShell(t: Test, line: string, cwd: string): Promise<string> {
  const command = line.replace('shaper', `"${process.execPath}" "${ROOT}/bin/shaper.js"`)
  const child = spawn('bash', ['-o', 'pipefail', '-c', command], { cwd, stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  const [code] = await once(child, 'close')
  t.equal(code, 0, line)
  return output
}

t.test('docs/replay.md has every format', async t => {
  const page = readFileSync(`${ROOT}/docs/replay.md`, 'utf8')
  const rows = [...page.matchAll(/^\| `(\w+)` \|/gm)].map(match => match[1]!)
  t.same(
    rows.filter(name => name in FORMATS),
    Object.keys(FORMATS),
  )
})

t.test('replays of docs/guide.md and docs/replay.md run, on a log and configurations', async t => {
  const limits = (rate: string) => JSON.stringify({ buckets: { client: { key: 'ip', rate, capacity: 5 } } })
  const log = gunzipSync(readFileSync(`${ROOT}/test/fixtures/apache-access.log.gz`))
  const cwd = t.testdir({
    'access.log': log,
    'access.log.1.gz': gzipSync(log),
    'shaper.config.json': limits('1/s'),
    'before.json': limits('1/s'),
    'after.json': limits('2/s'),
  })
  // The page shows what each format looks like. Its examples are about these.
  const samples = [...readFileSync(`${ROOT}/docs/replay.md`, 'utf8').matchAll(/^```log (\S+)\n([\s\S]*?)^```$/gm)]
  for (const [, name, text] of samples) {
    writeFileSync(`${cwd}/${name}`, name!.endsWith('.gz') ? gzipSync(text!) : text!)
  }
  // The command opens logs where the process is.
  const back = process.cwd()
  process.chdir(cwd)
  t.teardown(() => process.chdir(back))
  const { stdout: report } = await shaperHere(['replay', 'access.log', '--json'], { cwd })
  for (const name of ['monday.json', 'friday.json']) writeFileSync(`${cwd}/${name}`, report)
  const lines = ['docs/guide.md', 'docs/replay.md'].flatMap(page =>
    blocks(page, 'sh').flatMap(block => block.match(/^.*shaper replay .*$/gm) ?? []),
  )
  t.ok(lines.length > 10)
  t.ok(lines.filter(line => wordsOf(line) === undefined).length < 3, 'most need no shell')
  let output = ''
  const [read, formats] = [new Set<string>(), new Set<string>()]
  for (const line of lines) {
    const words = wordsOf(line)
    if (words === undefined) {
      output += await runInShell(t, line, cwd)
      continue
    }
    const { code, stdout, stderr } = await shaperHere(words, { cwd })
    t.equal(code, 0, `${line}: ${stderr}`)
    output += stdout
    const sample = samples.find(([, name]) => name === words[1])?.[1]
    if (sample === undefined) continue
    read.add(sample)
    t.notMatch(stdout, /bad line/, line)
    t.match(stdout, /^[12] requests? of [12] clients? in /, line)
    formats.add(/\((\w+)\)$/m.exec(stdout)![1]!)
  }
  t.same([...read].sort(), samples.map(([, name]) => name).sort(), 'each sample is read')
  const missing = Object.keys(FORMATS).filter(name => !formats.has(name))
  t.same(missing, ['common', 'alb'], 'those without a sample')
  const { stdout } = await shaperHere(['replay', 'access.log', '--rate', '1/s', '--capacity', '5'], { cwd })
  const text = readFileSync(`${ROOT}/docs/replay.md`, 'utf8')
  const shown = [...text.matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)]
    .filter(([, language]) => language === '')
    .flatMap(([, , block]) => block!.split('\n').filter(Boolean))
  t.equal(shown.length, 16)
  for (const line of shown) t.ok(stdout.includes(line) || output.includes(line), line)
})

t.test('docs/replay.md: the documented rule of spreading is in use', async t => {
  const [code] = blocks('docs/replay.md', 'js')
  const documented = new Function(`${code}; return spread`)() as typeof timeInSecond
  for (let at = 0; at < 100; at += 1) {
    const [second, n] = [1_431_857_103 + at * 977, 1 + (at % 7)]
    t.equal(documented(at, second, at % n, n), second * 1_000 + timeInSecond(at, second, at % n, n))
  }
})
