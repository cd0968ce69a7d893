/** The release workflow, as far as it can be checked without GitHub, npm and Docker; and the entry for SchemaStore. */
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { ROOT } from './cli/command.js'
import { emptyDirectory, pack, run, runWith } from './packed.js'

interface Job {
  readonly needs?: string | readonly string[]
  readonly permissions?: Record<string, string>
  readonly steps: readonly { readonly name?: string; readonly run?: string; readonly uses?: string }[]
}

const json = (path: string) => JSON.parse(readFileSync(join(ROOT, path), 'utf8'))
const workflow = (name: string): { jobs: Record<string, Job> } =>
  parse(readFileSync(`${ROOT}/.github/workflows/${name}`, 'utf8'))
const release = workflow('release.yml').jobs
const stepOf = (job: string, name: string): string => release[job]!.steps.find(step => step.name === name)!.run!

t.test('workflows name jobs, scripts and actions that are there', async t => {
  const { scripts } = json('package.json') as { scripts: Record<string, string> }
  for (const name of readdirSync(`${ROOT}/.github/workflows`)) {
    const { jobs } = workflow(name)
    const all = Object.values(jobs)
    for (const other of all.flatMap(({ needs = [] }) => needs)) t.ok(other in jobs, `${name}: job ${other}`)
    const steps = all.flatMap(job => job.steps)
    const ran = steps.flatMap(({ run = '' }) => [...run.matchAll(/npm run ([\w:-]+)/g)].map(([, script]) => script!))
    for (const script of ran) t.ok(script in scripts, `${name}: npm run ${script}`)
    for (const { uses = 'a/b@v1' } of steps) t.match(uses, /^[\w-]+\/[\w-]+@v\d+$/, name)
  }
})

t.test('nothing is published before the tests, and only its own job may publish', async t => {
  for (const job of ['npm', 'image', 'executables']) t.equal(release[job]!.needs, 'test')
  const writers = Object.entries(release).filter(([, { permissions = {} }]) =>
    Object.values(permissions).includes('write'),
  )
  t.same(
    writers.map(([job]) => job),
    ['npm', 'image', 'release'],
  )
})

t.test('the steps that need no service', { timeout: 120_000 }, async t => {
  const directory = emptyDirectory(t)
  const { version } = json('package.json') as { version: string }
  const tagged = stepOf('test', 'The tag is the version')
  await runWith({ GITHUB_REF_NAME: `v${version}` }, ROOT, 'sh', '-c', tagged)
  await t.rejects(runWith({ GITHUB_REF_NAME: 'v99.0.0' }, ROOT, 'sh', '-c', tagged))

  mkdirSync(`${directory}/files`)
  for (const name of ['package.json', 'package-lock.json']) cpSync(join(ROOT, name), join(directory, name))
  await run(directory, 'sh', '-ec', stepOf('release', 'What is in it'))
  const { components } = JSON.parse(readFileSync(`${directory}/files/shaper.cdx.json`, 'utf8')) as {
    components: { name: string }[]
  }
  const names = components.map(({ name }) => name)
  for (const name of Object.keys(json('package.json').dependencies)) t.ok(names.includes(name), name)
  t.notOk(names.includes('esbuild'), 'nothing of development')
  await run(directory, 'sh', '-c', stepOf('release', 'Checksums'))
  t.match(readFileSync(`${directory}/files/SHA256SUMS`, 'utf8'), /^[0-9a-f]{64} {2}shaper\.cdx\.json\n$/)
})

t.test('the entry for SchemaStore names a file of the package', async t => {
  const { fileMatch, url } = json('schemas/schemastore.json') as { fileMatch: string[]; url: string }
  t.same(fileMatch, [json('shaper.schema.json').title])
  const [, name, path] = /^https:\/\/unpkg\.com\/([\w-]+)\/(.+)$/.exec(url) ?? []
  t.equal(name, json('package.json').name)
  t.ok(existsSync(join(ROOT, path!)))
  t.ok((await pack(ROOT, `${emptyDirectory(t)}/packed`)).paths.includes(path!))
})
