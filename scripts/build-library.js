/**
 * Writes what users of the library get, from the sources that src/index.ts reaches.
 *
 * - dist: types, their sources, and an entry for `require`. The modules are those of the program.
 * - dist-core: the package leaky-shaper-core. Its modules are CommonJS, and index.mjs passes on their names. So `import` and `require`
 *   get the same classes and the same clock, and tools that cannot require ES modules (Jest before Node 24.9) can load it.
 *
 * The types of both are those of CommonJS for the same reason: index.d.mts passes them on to ES modules.
 */
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, posix, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import ts from 'typescript'

/** What the library part of a build consists of, if it is whole. */
export const LIBRARY = ['dist/index.cjs', 'dist/types/index.d.mts', 'dist-core/package.json']

/** The documents of leaky-shaper-core. */
const PAGES = ['outbound.md', 'migrating.md']

const JAVASCRIPT = {
  target: ts.ScriptTarget.ES2023,
  module: ts.ModuleKind.CommonJS,
  esModuleInterop: true,
  allowJs: true,
  sourceMap: true,
  // They are in the sources.
  removeComments: true,
}

/**
 * @param {string} root
 * @param {{ declarations: string, data: string[] }} built the folder of all declarations, and files beside the code, as paths in src
 */
export async function buildLibrary(root, { declarations, data }) {
  const types = declarationsFrom(declarations)
  const modules = modulesFrom(join(root, 'src'))
  const names = Object.keys(await import(pathToFileURL(join(root, 'dist/index.js')).href))
  const core = join(root, 'dist-core')
  rmSync(core, { recursive: true, force: true })

  const sourcesOfTypes = [...types.keys()].map(path => path.replace(/\.d\.ts$/, '.ts'))
  writeTypes(join(root, 'dist'), types)
  copySources(root, join(root, 'dist'), sourcesOfTypes)
  write(join(root, 'dist/index.cjs'), "module.exports = require('./index.js')\n")

  const dist = join(core, 'dist')
  writeTypes(dist, types)
  copySources(root, dist, [...new Set([...sourcesOfTypes, ...modules.keys()])])
  for (const [path, { code, map }] of modules) {
    const target = join(dist, path.replace(/\.ts$/, '.js'))
    write(target, code)
    write(`${target}.map`, withSource(map, relative(dirname(target), join(dist, 'src', path))))
  }
  for (const path of data.filter(path => /\.(lua|sql)$/.test(path))) {
    mkdirSync(dirname(join(dist, path)), { recursive: true })
    copyFileSync(join(root, 'src', path), join(dist, path))
  }
  write(join(dist, 'index.mjs'), `export { ${names.join(', ')} } from './index.js'\n`)
  write(join(core, 'README.md'), README)
  for (const page of PAGES)
    write(join(core, 'docs', page), coreDocument(readFileSync(join(root, 'docs', page), 'utf8')))
  copyFileSync(join(root, 'LICENSE'), join(core, 'LICENSE'))
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

/** The modules that index.ts loads now or later, with their maps, by path in src. */
function modulesFrom(folder) {
  return reach('index.ts', path => {
    const text = readFileSync(join(folder, path), 'utf8')
    const options = { compilerOptions: JAVASCRIPT, fileName: posix.basename(path) }
    const { outputText, sourceMapText } = ts.transpileModule(text, options)
    const threads = [...outputText.matchAll(/new URL\(['"](\.[^'"]+\.js)['"], import\.meta\.url\)/g)]
    const next = [...importsOf(path, outputText), ...threads.map(([, to]) => posix.join(posix.dirname(path), to))]
    const code = outputText.replaceAll('import.meta.url', "require('node:url').pathToFileURL(__filename).href")
    return { code, map: sourceMapText, next: next.map(to => sourceOf(folder, to)) }
  })
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

/** Threads are written in JavaScript. */
function sourceOf(folder, path) {
  return ts.sys.fileExists(join(folder, path)) ? path : path.replace(/\.js$/, '.ts')
}

function writeTypes(dist, types) {
  const folder = join(dist, 'types')
  rmSync(folder, { recursive: true, force: true })
  for (const [path, { text, map }] of types) {
    const source = join(dist, 'src', path.replace(/\.d\.ts$/, '.ts'))
    write(join(folder, path), text)
    write(join(folder, `${path}.map`), withSource(map, relative(join(folder, dirname(path)), source)))
  }
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
    main: './dist/index.js',
    types: './dist/types/index.d.ts',
    exports: {
      '.': {
        import: { types: './dist/types/index.d.mts', default: './dist/index.mjs' },
        require: { types: './dist/types/index.d.ts', default: './dist/index.js' },
      },
      './package.json': './package.json',
    },
    files: ['dist', 'docs'],
    engines,
    // ioredis and pg, which users of a store install, are found without being named here, with npm and with pnpm.
    peerDependencies: { undici: '7 || 8' },
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

- \`shape()\` is for undici 7 or 8. undici 8 needs Node >= 22.19: on an older one, \`npm install undici@7\`.
- A shaper with a store needs \`npm install ioredis\` or \`npm install pg\`.
- docs/outbound.md has every option, and docs/migrating.md what stands for those of other libraries.
`

/** A document as it is in the package: with its name, and without links to what is not there. */
function coreDocument(text) {
  return text
    .replaceAll("from 'leaky-shaper'", "from 'leaky-shaper-core'")
    .replace(/\[([^\]]+)\]\(([^)#]*)[^)]*\)/g, (link, words, to) => {
      return to === '' || PAGES.includes(to) || to.startsWith('http') ? link : words
    })
}

function readJson(path) {
  return JSON.parse(readFileSync(path, 'utf8'))
}

function write(path, content) {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, content)
}
