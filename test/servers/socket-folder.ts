import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A folder for sockets. Those of `t.testdir` have too long paths for them. */
export function socketFolder(t: { teardown(run: () => unknown): void }): string {
  const path = mkdtempSync(join(tmpdir(), 'shaper-unix-'))
  t.teardown(() => rmSync(path, { recursive: true }))
  return path
}
