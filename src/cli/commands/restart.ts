/** Asks a running program to start its successor (serving/succession.ts). */
import { adminAddress, askAdmin } from './admin-client.js'

/** ms. The program gives a successor up after 30 s. */
const PATIENCE = 35_000

/**
 * @throws ConfigError when `--admin` is no URL
 * @throws CommandError when the admin server does not answer or refuses, or the program goes on as it was
 */
export async function runRestart(
  { admin }: { readonly admin: string },
  { env, stdout }: { readonly env: NodeJS.ProcessEnv; readonly stdout: NodeJS.WritableStream },
): Promise<void> {
  const isAnswer = ({ pid }: { pid?: number }): boolean => typeof pid === 'number'
  const options = { method: 'POST', timeout: PATIENCE }
  const { pid } = await askAdmin<{ pid: number }>(adminAddress(admin, env), '/restart', isAnswer, options)
  stdout.write(`process ${pid} serves now; the one before it ends with its last answer\n`)
}
