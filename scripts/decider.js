// Compiles src/decider to Lua, for the script that Redis runs: each module to a file in src/stores/redis/scripts/decider, which decide.lua
// includes by its name. Imports of other modules fall away: what they export is in the scope of the script. A constant becomes `@NAME@`,
// as in the other scripts. Does nothing where nothing has changed since.
import { mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import ts from 'typescript'

const SOURCE = 'src/decider'
const TARGET = 'src/stores/redis/scripts/decider'
/** Constants, and types only: nothing to compile. */
const LEFT_OUT = ['constants.ts', 'record.ts']

/** @param root of the repository */
export async function compileDecider(root) {
  const sources = readdirSync(join(root, SOURCE)).map(name => join(root, SOURCE, name))
  const modules = sources.filter(path => !LEFT_OUT.includes(basename(path)))
  const targetOf = path => join(root, TARGET, basename(path).replace(/\.ts$/, '.lua'))
  mkdirSync(join(root, TARGET), { recursive: true })
  const known = readdirSync(join(root, TARGET)).map(name => join(root, TARGET, name))
  for (const path of known) if (!modules.some(module => targetOf(module) === path)) rmSync(path)
  const rules = ['scripts/decider.js', 'package-lock.json'].map(path => join(root, path))
  const newest = Math.max(...[...sources, ...rules].map(changedAt))
  if (modules.every(path => changedAt(targetOf(path)) > newest)) return
  for (const { path, text } of await compile(root, modules)) writeFileSync(targetOf(path), text)
}

async function compile(root, modules) {
  const tstl = await import('typescript-to-lua')
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile)
  const { options } = ts.convertCompilerOptionsFromJson(config.compilerOptions, root)
  const lua = {
    noEmit: false,
    removeComments: true,
    luaTarget: '5.1',
    luaLibImport: 'inline',
    noHeader: true,
    noImplicitSelf: true,
  }
  const program = ts.createProgram(modules, { ...options, types: [], ...lua })
  const sourceFiles = modules.map(path => program.getSourceFile(path))
  const { transpiledFiles, diagnostics } = tstl.getProgramTranspileResult(ts.sys, () => {}, { program, sourceFiles })
  const faults = [...diagnostics, ...sourceFiles.flatMap(file => program.getSemanticDiagnostics(file))]
  if (faults.length > 0) throw new Error(ts.formatDiagnostics(faults, ts.createCompilerHost(options)))
  return transpiledFiles.map(({ fileName, code }) => ({ path: fileName, text: inScope(code, basename(fileName)) }))
}

/** Its exports and what it uses of mathematics as local names, its imports as names of the scope. */
function inScope(code, name) {
  if (code.includes('__TS__')) throw new Error(`${name} needs a library in Lua: ${code.match(/__TS__\w+/)[0]}`)
  const exported = new Set(Array.from(code.matchAll(/____exports\.(\w+)/g), ([, name]) => name))
  const used = new Set(Array.from(code.matchAll(/\bmath\.(\w+)/g), ([, name]) => name))
  const imports = /^local ____\w+ = require\(.*\n/gm
  const constants = Array.from(code.matchAll(/^local ([A-Z_]+) = ____\w+\.\1\n/gm), ([, name]) => name)
  const body = code
    .replace(imports, '')
    .replace(/^local (\w+) = ____\w+_2Ejs\.\1\n/gm, '')
    .replace(/^local ____exports = \{\}\n/, '')
    .replace(/^return ____exports\n/m, '')
    .replaceAll('____exports.', '')
    .replace(/\bmath\.(\w+)/g, 'math_$1')
    .replace(/\[(\w+) \+ (\d+) \+ 1\]/g, (_, list, place) => `[${list} + ${Number(place) + 1}]`)
    // A call for each turn takes time. Nothing is added to a list while it is gone through.
    .replace(/^( *)for ____, (\w+) in ipairs\((\w+)\) do$/gm, '$1for ____at = 1, #$3 do\n$1    local $2 = $3[____at]')
    .replace(/\b[A-Z][A-Z_]+\b/g, name => (constants.includes(name) ? `@${name}@` : name))
  if (/_2Ejs|____exports/.test(body)) throw new Error(`${name} has an import or an export that is not understood`)
  const locals = [...used].map(name => `local math_${name} = math.${name}\n`).join('')
  return `local ipairs = ipairs\n${locals}local ${[...exported].join(', ')}\n${body}`
}

/** ms; 0: it is not there. */
function changedAt(path) {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0
}
