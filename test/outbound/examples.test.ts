/** The examples of the library's pages in TypeScript in its strictest mode. (test/docs.test.ts runs them.) */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import ts from 'typescript'
import { ROOT } from '../cli/command.js'

t.test('they compile', async t => {
  const files: Record<string, string> = {}
  for (const page of ['docs/outbound.md', 'docs/migrating.md']) {
    const text = readFileSync(join(ROOT, page), 'utf8')
    for (const [place, match] of [...text.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].entries()) {
      files[`${page.replace(/\W/g, '-')}-${place}.mts`] = match[1]!
    }
  }
  const directory = t.testdir(files)
  const names = Object.keys(files).map(name => join(directory, name))
  t.ok(names.length >= 7)
  const program = ts.createProgram(names, {
    strict: true,
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    noEmit: true,
    skipLibCheck: true,
    target: ts.ScriptTarget.ES2023,
    module: ts.ModuleKind.NodeNext,
    types: ['node'],
    typeRoots: [join(ROOT, 'node_modules/@types')],
    paths: { 'leaky-shaper': [join(ROOT, 'src/index.ts')] },
  })
  const told = ts.getPreEmitDiagnostics(program).map(({ file, start, messageText }) => {
    const line = file === undefined ? '' : `${file.fileName}:${file.getLineAndCharacterOfPosition(start!).line + 1} `
    return line + ts.flattenDiagnosticMessageText(messageText, '\n')
  })
  t.same(told, [])
})
