/**
 * Writes what users of the library get, from the sources that src/index.ts reaches.
 *
 * - dist: types, their sources, and an entry for `require`. The modules are those of the program.
 * - dist-core: the package leaky-shaper-core. index.cjs is all of it in one file, also the scripts of stores and the pacing thread.
 *   index.mjs passes on its names: required, as an import would read it twice to find them (70 ms of CPU instead of 21). Bundlers
 *   follow bundlers.mjs (condition `module`). So `import` and `require` get the same classes and the same clock, and tools that cannot require ES
 *   modules (Jest before Node 24.9) can load it.
 *
 * The types of both are those of CommonJS for the same reason: index.d.mts passes them on to ES modules.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, posix, relative, sep } from 'node:path'
import { pathToFileURL } from 'node:url'
import { brotliCompressSync } from 'node:zlib'
import { build } from 'esbuild'
import ts from 'typescript'

/** What the library part of a build consists of, if it is whole. */
export const LIBRARY = ['dist/index.cjs', 'dist/types/index.d.mts', 'dist-core/package.json']

const BUNDLE = {
  bundle: true,
  write: false,
  platform: 'node',
  format: 'cjs',
  target: 'node20.19',
  minify: true,
  legalComments: 'none',
}

/**
 * @param {string} root
 * @param {string} declarations the folder of all declarations
 */
export async function buildLibrary(root, declarations) {
  const types = declarationsFrom(declarations)
  const names = Object.keys(await import(pathToFileURL(join(root, 'dist/index.js')).href))
  const core = join(root, 'dist-core')
  rmSync(core, { recursive: true, force: true })

  const dist = join(root, 'dist')
  writeTypes(dist, types, ({ text, map }, path) => {
    const source = join(dist, 'src', path.replace(/\.d\.ts$/, '.ts'))
    write(join(dist, 'types', `${path}.map`), withSource(map, relative(join(dist, 'types', dirname(path)), source)))
    return text
  })
  copySources(
    root,
    dist,
    [...types.keys()].map(path => path.replace(/\.d\.ts$/, '.ts')),
  )
  write(join(dist, 'index.cjs'), "module.exports = require('./index.js')\n")

  writeTypes(
    join(core, 'dist'),
    new Map([['index.d.ts', bundledTypes(join(declarations, 'index.d.ts'))]]),
    // A tenth of the file would be spaces.
    text => text.replace(/^(?: {4})+/gm, indent => '\t'.repeat(indent.length / 4)),
  )
  // Its store clients are found when they are needed.
  const packages = { external: ['ioredis', 'pg'] }
  write(join(core, 'dist/index.cjs'), await bundled({ entryPoints: [join(root, 'src/index.ts')] }, packages))
  const exported = `export const { ${names.join(', ')} }`
  write(
    join(core, 'dist/index.mjs'),
    `import { createRequire } from 'node:module'\n${exported} = createRequire(import.meta.url)('./index.cjs')\n`,
  )
  write(join(core, 'dist/bundlers.mjs'), `import library from './index.cjs'\n${exported} = library\n`)
  write(join(core, 'README.md'), README)
  const licences = ['LICENSE', 'node_modules/structured-headers/LICENSE'].map(path =>
    readFileSync(join(root, path), 'utf8'),
  )
  write(join(core, 'LICENSE'), licences.join('\nIt contains structured-headers:\n\n'))
  // Last: a build without it is not whole.
  write(join(core, 'package.json'), `${JSON.stringify(coreManifest(readJson(join(root, 'package.json'))), null, 2)}\n`)
}

/** The declarations that index.d.ts reaches, with their maps, by path. */
function declarationsFrom(folder) {
  return reach('index.d.ts', path => {
    const text = readFileSync(join(folder, path), 'utf8')
    const map = readFileSync(join(folder, `${path}.map`), 'utf8')
    return { text, map, next: importsOf(path, text).map(to => to.replace(/\.js$/, '.d.ts')) }
  })
}

/** What a declaration says without its `@internal` members, and without the words that export it. */
function textOf(node) {
  const source = node.getSourceFile().text
  const cuts = (node.members ?? [])
    .filter(member => ts.getJSDocTags(member).some(({ tagName }) => tagName.text === 'internal'))
    .map(member => [member.getFullStart(), member.getEnd()])
  let text = ''
  let from = node.getFullStart()
  for (const [start, end] of [...cuts, [node.getEnd()]]) {
    text += source.slice(from, start)
    from = end
  }
  return text
    .trim()
    .replace(/^(\/\*\*[\s\S]*?\*\/\s*)?export /, '$1')
    .replace(/^(\/\*\*[\s\S]*?\*\/\s*)?(class|function|const) /, '$1declare $2 ')
}

/** The declarations of an entry and all that they name, as one file. Where undici, an optional peer, is missing its types are any. */
function bundledTypes(entry) {
  const options = { module: ts.ModuleKind.NodeNext, target: ts.ScriptTarget.ES2023 }
  const program = ts.createProgram([entry], options)
  const checker = program.getTypeChecker()
  const own = symbol => (symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol)
  const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry)))
  const [found, imports, open] = [new Map(), new Set(), exported.map(own)]
  const visit = node => {
    if (ts.getJSDocTags(node).some(({ tagName }) => tagName.text === 'internal')) return
    if (ts.isIdentifier(node)) {
      const symbol = checker.getSymbolAtLocation(node)
      const from = symbol?.declarations?.find(ts.isImportSpecifier)?.parent.parent.parent
      if (from !== undefined && !from.moduleSpecifier.text.startsWith('.')) imports.add(from.getText())
      else if (symbol !== undefined) open.push(own(symbol))
    }
    ts.forEachChild(node, visit)
  }
  while (open.length > 0) {
    for (const declaration of open.pop().declarations ?? []) {
      const node = ts.isVariableDeclaration(declaration) ? declaration.parent.parent : declaration
      if (!ts.isSourceFile(node.parent) || !node.getSourceFile().fileName.startsWith(dirname(entry))) continue
      if (found.has(node)) continue
      found.set(node, textOf(node))
      visit(node)
    }
  }
  const names = [...found.keys()].map(node => (node.name ?? node.declarationList.declarations[0].name).text)
  const twice = names.find((name, place) => names.indexOf(name) !== place && !exported.some(each => each.name === name))
  if (twice !== undefined) throw new Error(`two declarations are called ${twice}: rename one`)
  const isType = symbol => (own(symbol).flags & ts.SymbolFlags.Value) === 0
  const list = exported.map(symbol => `${isType(symbol) ? 'type ' : ''}${symbol.name}`)
  const heads = [...imports].map(line => (line.includes("'undici'") ? `// @ts-ignore\n${line}` : line))
  return [...heads, ...found.values(), `export { ${list.join(', ')} }\n`].join('\n')
}

/**
 * An entry as one CommonJS module, with the files that its sources read, and the threads that they start.
 *
 * @param packages how esbuild finds packages
 */
export async function bundled(entry, packages) {
  const embed = {
    name: 'embed',
    setup: ({ onLoad }) => onLoad({ filter: /\.ts$/ }, ({ path }) => embedded(path, packages)),
  }
  const { inThread: _, ...options } = packages
  return outputOf({ ...entry, ...options, plugins: [embed] })
}

async function outputOf(options) {
  const { outputFiles } = await build({ ...BUNDLE, ...options })
  return outputFiles[0].text
}

/** A source with the files that it reads, compressed, and the threads that it starts. */
async function embedded(path, packages) {
  const text = readFileSync(path, 'utf8')
  if (!text.includes('import.meta.url')) return undefined
  let contents = text
    .replaceAll(/readFileSync\(new URL\(([^,]+), import\.meta\.url\), 'utf8'\)/g, (_, name) => {
      const packed = brotliCompressSync(JSON.stringify(scriptsFor(name, dirname(path)))).toString('base64')
      return `JSON.parse(require('node:zlib').brotliDecompressSync(Buffer.from('${packed}', 'base64')).toString())[${name}]`
    })
    // The bundler finds what it requires.
    .replace('const require = createRequire(import.meta.url)\n', '')
  for (const [start, name] of text.matchAll(/new Worker\(new URL\('(\.\/[\w-]+)\.js', import\.meta\.url\), \{/g)) {
    const file = ['ts', 'js'].map(end => join(dirname(path), `${name}.${end}`)).find(existsSync)
    // A thread starts none, though it may have the code for it.
    const thread = packages.inThread ? '' : await bundled({ entryPoints: [file] }, { ...packages, inThread: true })
    contents = contents.replace(start, () => `new Worker(${JSON.stringify(thread)}, { eval: true,`)
  }
  if (contents.includes('import.meta.url')) throw new Error(`${path}: the bundle cannot embed what it reads`)
  return { contents, loader: 'ts' }
}

/** Files by their names, scripts without their comments. The name is a text, a template with a part that is not known (the decider's scripts are in a folder), or a variable. */
function scriptsFor(name, folder) {
  if (/^'\.\./.test(name)) return { [name.slice(1, -1)]: readFileSync(join(folder, name.slice(1, -1)), 'utf8') }
  const isVariable = /^\w+$/.test(name)
  const pattern = new RegExp(
    isVariable
      ? '^[\\w-]+\\.(js|css|html)$'
      : `^${name
          .slice(1, -1)
          .replaceAll('.', '\\.')
          .replace(/\$\{\w+\}/, '[\\w/-]+')}$`,
  )
  const all = readdirSync(folder, { recursive: true }).map(path => path.split(sep).join('/'))
  const found = all.map(path => (isVariable ? path : `./${path}`)).filter(path => pattern.test(path))
  return Object.fromEntries(found.map(path => [path, withoutComments(path, readFileSync(join(folder, path), 'utf8'))]))
}

function withoutComments(path, text) {
  return /\.(lua|sql)$/.test(path) ? text.replaceAll(/^[ \t]*--(?!\[).*\n/gm, '') : text
}

/** The results of `read` by path: of the first path, and of all that `next` leads to. */
function reach(first, read) {
  const found = new Map()
  const open = [first]
  while (open.length > 0) {
    const path = open.pop()
    if (found.has(path)) continue
    found.set(path, read(path))
    open.push(...found.get(path).next)
  }
  return found
}

/** The files of this package that a file imports, as paths from the same folder as its own. */
function importsOf(path, text) {
  const { importedFiles } = ts.preProcessFile(text, true, true)
  const near = importedFiles.map(({ fileName }) => fileName).filter(name => name.startsWith('.'))
  return near.map(name => posix.join(posix.dirname(path), name))
}

/** @param textOf what is written of a declaration */
function writeTypes(dist, types, textOf) {
  const folder = join(dist, 'types')
  rmSync(folder, { recursive: true, force: true })
  for (const [path, found] of types) write(join(folder, path), textOf(found, path))
  write(join(folder, 'index.d.mts'), "export * from './index.js'\n")
  write(join(folder, 'package.json'), '{ "type": "commonjs" }\n')
}

function copySources(root, dist, paths) {
  const folder = join(dist, 'src')
  rmSync(folder, { recursive: true, force: true })
  for (const path of paths) write(join(folder, path), readFileSync(join(root, 'src', path)))
}

function withSource(map, source) {
  return JSON.stringify({ ...JSON.parse(map), sources: [source], sourceRoot: '' })
}

function coreManifest({ version, license, engines, keywords }) {
  return {
    name: 'leaky-shaper-core',
    version,
    description:
      'Calls leave in order, one queue per key, at exactly the rate that you say. For functions and for undici',
    keywords: keywords.filter(word => word !== 'reverse-proxy'),
    license,
    type: 'commonjs',
    main: './dist/index.cjs',
    types: './dist/types/index.d.ts',
    exports: {
      '.': {
        import: { types: './dist/types/index.d.mts', module: './dist/bundlers.mjs', default: './dist/index.mjs' },
        require: { types: './dist/types/index.d.ts', default: './dist/index.cjs' },
      },
      './package.json': './package.json',
    },
    sideEffects: false,
    files: ['dist'],
    engines,
    // ioredis and pg, which users of a store install, are found without being named here, with npm and with pnpm.
    peerDependencies: { undici: '7 || 8' },
    peerDependenciesMeta: { undici: { optional: true } },
  }
}

const README = `# leaky-shaper-core

The library of leaky-shaper, without its reverse proxy: no dependencies.

\`\`\`js
import { createShaper } from 'leaky-shaper-core'

const shaper = createShaper({ rate: '5/s', capacity: 100 })
await shaper.run('user_42', async () => 'a call') // each key in its turn, at 5/s
\`\`\`

It works with \`import\` and \`require\`, on Node >= 20.19.

- \`shape()\` is for undici 7 or 8: \`npm install undici@7\`, or \`undici@8\` on Node >= 22.19.
- A shaper with a store needs \`npm install ioredis\` or \`npm install pg\`.
- The declarations describe every option. docs/outbound.md in the source directory has recipes, and docs/migrating.md what replaces
  the options of other libraries.
`

function readJson(path) {
  return JSON.parse(readFileSync(path, 'utf8'))
}

function write(path, content) {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, content)
}
