/** The types of the library, over the libs that projects have. */
import t from 'tap'
import ts from 'typescript'
import { ROOT } from '../cli/command.js'

const { options } = ts.convertCompilerOptionsFromJson(
  ts.readConfigFile(`${ROOT}/tsconfig.json`, ts.sys.readFile).config.compilerOptions,
  ROOT,
)

t.setTimeout(240_000)

for (const lib of [['es2023'], ['es2023', 'dom', 'dom.iterable']]) {
  t.test(`what is wrong does not compile, and the rest does: ${lib.join(', ')}`, { timeout: 120_000 }, async t => {
    const { options: libs } = ts.convertCompilerOptionsFromJson({ lib }, ROOT)
    const program = ts.createProgram([`${ROOT}/test/outbound/public-types.ts`], { ...options, ...libs })
    // The sources themselves are checked by `npm run types`.
    const source = program.getSourceFile(`${ROOT}/test/outbound/public-types.ts`)!
    const complaints = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)]
    t.same(
      complaints.map(({ messageText, start }) => {
        const { line } = source.getLineAndCharacterOfPosition(start!)
        return `${line + 1}: ${ts.flattenDiagnosticMessageText(messageText, ' ')}`
      }),
      [],
    )
  })
}
