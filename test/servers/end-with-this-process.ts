import { type ChildProcess, spawn } from 'node:child_process'

/** A server must not outlive this process. The pipe of its guard ends with this process in any case. */
export function endWithThisProcess(server: ChildProcess): void {
  if (server.pid === undefined) return
  const guard = spawn('sh', ['-c', `read _; kill -9 ${server.pid}`], { stdio: ['pipe', 'ignore', 'ignore'] })
  guard.stdin.on('error', () => {})
  server.once('exit', () => guard.kill('SIGKILL'))
}
