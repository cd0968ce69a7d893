import { once } from 'node:events'
import { statSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { startListening } from '../../src/http/listening.js'
import { socketFolder } from '../servers/socket-folder.js'

t.test('a Unix socket has its mode from its first moment', async t => {
  for (const mode of [0o600, 0o666]) {
    const path = join(socketFolder(t), 'a.sock')
    const server = createServer()
    const umask = process.umask()
    const listening = startListening(server, { path, mode })
    t.equal(statSync(path).mode & 0o777, mode, 'before it is told that it listens')
    t.equal(process.umask(), umask)
    await listening
    t.equal(statSync(path).mode & 0o777, mode)
    const closed = once(server, 'close')
    server.close()
    await closed
  }
})
