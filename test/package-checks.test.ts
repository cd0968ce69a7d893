/** Both packages as tools see them: attw, publint, Node, an editor. No network. Needs an up-to-date dist. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { SourceMap } from 'node:module'
import { dirname, join } from 'node:path'
import { checkPackage, createPackageFromTarballData } from '@arethetypeswrong/core'
import { publint } from 'publint'
import { formatMessage } from 'publint/utils'
import t from 'tap'
import ts from 'typescript'
import { ROOT } from './cli/command.js'
import { emptyDirectory, loadedFiles, type Packed, pack } from './packed.js'

const MANIFEST = JSON.parse(readFileSync(`${ROOT}/package.json`, 'utf8')) as Record<string, unknown>

const [, KB] = /`leaky-shaper-core` .* itself \(under (\d+) kB\)/.exec(
  readFileSync(`${ROOT}/docs/outbound.md`, 'utf8'),
)!

/** What an installed package may take, in bytes. `leaky-shaper` is the program as well, with its documents. */
const LARGEST: Record<string, number> = { 'leaky-shaper': 4_300_000, 'leaky-shaper-core': Number(KB) * 1e3 }

t.test('packed', { timeout: 120_000 }, async t => {
  const directory = emptyDirectory(t)
  const packages: Record<string, Packed> = {
    'leaky-shaper': await pack(ROOT, `${directory}/packed`),
    'leaky-shaper-core': await pack(`${ROOT}/dist-core`, `${directory}/packed`),
  }

  for (const [name, { tarball, unpackedSize }] of Object.entries(packages)) {
    await t.test(`${name}: attw and publint find nothing wrong`, async t => {
      const data = new Uint8Array(readFileSync(tarball))
      const analysis = await checkPackage(createPackageFromTarballData(data))
      t.same(analysis.types, { kind: 'included' })
      t.same('problems' in analysis && analysis.problems, [])
      const { messages } = await publint({ pack: { tarball: data.buffer }, strict: true })
      t.same(
        messages.map(message => formatMessage(message, MANIFEST)),
        [],
      )
      t.ok(unpackedSize < LARGEST[name]!, `${unpackedSize} bytes`)
    })
  }

  await t.test('the check of types finds wrong ones', async t => {
    const broken = join(directory, 'broken')
    mkdirSync(broken)
    const exports = { '.': { types: './index.d.ts', import: './index.mjs', require: './index.js' } }
    writeFileSync(join(broken, 'package.json'), JSON.stringify({ name: 'broken', version: '1.0.0', exports }))
    writeFileSync(join(broken, 'index.js'), 'exports.a = 1')
    writeFileSync(join(broken, 'index.mjs'), 'export const a = 1')
    writeFileSync(join(broken, 'index.d.ts'), 'export declare const a: number')
    const data = new Uint8Array(readFileSync((await pack(broken, `${directory}/packed`)).tarball))
    const analysis = await checkPackage(createPackageFromTarballData(data))
    t.ok('problems' in analysis && analysis.problems.some(({ kind }) => kind === 'FalseCJS'))
    const { messages } = await publint({ pack: { tarball: data.buffer }, strict: true })
    t.not(messages.length, 0)
  })

  await t.test('the core has the library only, and its manifest is that of the root', async t => {
    const { paths } = packages['leaky-shaper-core']!
    const allowed =
      /^(LICENSE|README\.md|package\.json|dist\/(index\.mjs|index\.cjs|bundlers\.mjs)|dist\/types\/(package\.json|index\.d\.mts|index\.d\.ts))$/
    t.same(
      paths.filter(path => !allowed.test(path)),
      [],
    )
    const core = JSON.parse(readFileSync(`${ROOT}/dist-core/package.json`, 'utf8')) as Record<string, unknown>
    for (const key of ['version', 'license', 'engines']) t.same(core[key], MANIFEST[key], key)
    t.equal(core.dependencies, undefined)
    t.same(core.peerDependencies, { undici: '7 || 8' }, 'its only peer')
    t.same(core.peerDependenciesMeta, { undici: { optional: true } })
  })
})

await t.test('the program is not loaded with the library', async t => {
  for (const code of ["import 'leaky-shaper'", "require('leaky-shaper')"]) {
    // In its own directory the package's name is its own.
    const { own, others } = await loadedFiles(ROOT, 'leaky-shaper', code)
    const more = others.filter(path => !path.includes('/node_modules/structured-headers/'))
    t.same(more, [], `${code}: nothing but the parser of fields`)
    t.ok(own > 30, `${own} files`)
  }
  const { others } = await loadedFiles(ROOT, 'leaky-shaper', "import 'leaky-shaper'; import 'zod'")
  t.ok(
    others.some(path => path.includes('/node_modules/zod/')),
    'zod would be seen',
  )
})

/** The declarations of a package, as an editor reads them. */
function declarationsOf(dist: string) {
  const entry = `${dist}/types/index.d.mts`
  const options = { strict: true, module: ts.ModuleKind.Node16, target: ts.ScriptTarget.ES2023 }
  const program = ts.createProgram([entry], options)
  const checker = program.getTypeChecker()
  const names = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry)!)!)
  const symbols = names.map(name => (name.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(name) : name))
  return { checker, symbols }
}

function fileOf(symbol: ts.Symbol): string {
  return symbol.declarations?.[0]?.getSourceFile().fileName ?? ''
}

/** Where an editor goes from a declaration: the line of the source. */
function sourceLine(symbol: ts.Symbol): string {
  const declaration = symbol.declarations![0]!
  const file = declaration.getSourceFile()
  const name = (declaration as ts.NamedDeclaration).name ?? declaration
  const { line, character } = file.getLineAndCharacterOfPosition(name.getStart(file))
  const map = new SourceMap(JSON.parse(readFileSync(`${file.fileName}.map`, 'utf8')))
  const entry = map.findEntry(line, character)
  if (!('originalSource' in entry)) return 'not mapped'
  const source = readFileSync(join(dirname(file.fileName), entry.originalSource), 'utf8')
  return source.split('\n')[entry.originalLine]!
}

for (const dist of [`${ROOT}/dist`, `${ROOT}/dist-core/dist`]) {
  t.test(`hover text and sources: ${dist.slice(ROOT.length + 1)}`, t => {
    const { checker, symbols } = declarationsOf(dist)
    const isOurs = (symbol: ts.Symbol) =>
      /\/types\/outbound\/|\/dist-core\/dist\/types\/index\.d\.ts$/.test(fileOf(symbol))
    const members = (symbol: ts.Symbol) => checker.getDeclaredTypeOfSymbol(symbol).getProperties().filter(isOurs)
    const ours = symbols
      .filter(isOurs)
      .flatMap(symbol => [
        { name: symbol.name, symbol },
        ...members(symbol).map(member => ({ name: `${symbol.name}.${member.name}`, symbol: member })),
      ])
    // Of Error, or private.
    const shown = ours.filter(({ name }) => !/\.name$|#/.test(name) || name === 'CredentialOptions.name')
    const silent = shown.filter(({ symbol }) => symbol.getDocumentationComment(checker).length === 0)
    t.same(
      silent.map(({ name }) => name),
      [],
    )
    const names = new Set(shown.map(({ name }) => name))
    for (const name of ['createShaper', 'shape', 'ShaperOptions.retry', 'ShapeOptions.retry', 'OutboundShaper.run'])
      t.ok(names.has(name), name)
    // The core has no sources beside its one file.
    if (dist.includes('core')) return t.end()
    const lost = shown.filter(({ symbol }) => !sourceLine(symbol).includes(symbol.name))
    t.same(
      lost.map(({ name }) => name),
      [],
    )
    t.end()
  })
}
