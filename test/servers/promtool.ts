/** Prometheus' own judge of metrics and rules. */
import { spawnSync } from 'node:child_process'

const INSTALL =
  'apt-get install prometheus (Debian), dnf install golang-github-prometheus (Fedora), brew install prometheus (macOS)'

/** Runs promtool. It has complaints only where its status is not 0. */
export function promtool(args: readonly string[], input = ''): { status: number | null; output: string } {
  const { status, error, stdout, stderr } = spawnSync('promtool', args, { encoding: 'utf8', input })
  if (error !== undefined) throw new Error(`promtool is needed: ${INSTALL}`, { cause: error })
  return { status, output: stdout + stderr }
}
