// Compiles src to dist, copies the other files (.html, .lua, .sql, ...), and writes shaper.schema.json.
import { execFileSync } from 'node:child_process'
import { cpSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc')

rmSync(join(root, 'dist'), { recursive: true, force: true })
execFileSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' })
cpSync(join(root, 'src'), join(root, 'dist'), {
  recursive: true,
  filter: source => !/\.tsx?$/.test(source),
})
const { jsonSchema } = await import(pathToFileURL(join(root, 'dist/config/schema/schema.js')).href)
writeFileSync(join(root, 'shaper.schema.json'), `${JSON.stringify(jsonSchema(), null, 2)}\n`)
