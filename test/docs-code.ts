/** Running the examples of the docs, each in a process of its own, with the library as it is built. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { ROOT } from './cli/command.js'

/** What an example has written, and how it has ended. */
export async function runExample(code: string): Promise<{ code: number | null; output: string }> {
  // From the package's own directory its name is its own.
  const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
    cwd: ROOT,
    env: { PATH: process.env.PATH, HOME: process.env.HOME },
    timeout: 30_000,
    killSignal: 'SIGKILL',
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk
    })
  }
  const [exit] = await once(child, 'close')
  return { code: exit as number | null, output }
}
