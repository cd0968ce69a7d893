import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const PROGRAM = fileURLToPath(new URL('held.js', import.meta.url))

t.test('two thousand requests held at the same moment are each answered exactly once', async t => {
  const child = spawn(process.execPath, [PROGRAM, '2000'], { env: { ...process.env, NODE_V8_COVERAGE: '' } })
  let output = ''
  let errors = ''
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk
  })
  const [code] = await once(child, 'close')
  t.equal(code, 0, errors)
  const { connections, kilobytesPerHeldRequest } = JSON.parse(output) as Record<string, number>
  t.equal(connections, 2_000)
  t.ok(kilobytesPerHeldRequest! < 40, `${kilobytesPerHeldRequest} kB each`)
})
