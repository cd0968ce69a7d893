import { readFileSync, watch } from 'node:fs'
import { basename, dirname } from 'node:path'

/** Editors and deployments write in several steps: a change counts when nothing more has come for so long, in ms. */
const SETTLING = 100

/**
 * Calls `changed` when the contents of a file have changed, however it was written or replaced (the directory is
 * watched: a replaced file, or a link that is turned, is another inode).
 *
 * @returns ends watching
 */
export function watchFile(file: string, changed: () => void): () => void {
  let last = contents(file)
  let settling: NodeJS.Timeout | undefined
  const look = (): void => {
    const now = contents(file)
    // Gone for a moment, while it is replaced.
    if (now === undefined || now === last) return
    last = now
    changed()
  }
  const watcher = watch(dirname(file), (_event, name) => {
    if (name !== null && name !== basename(file) && !name.startsWith('..')) return
    clearTimeout(settling)
    settling = setTimeout(look, SETTLING)
  })
  watcher.on('error', () => undefined)
  watcher.unref()
  return () => {
    clearTimeout(settling)
    watcher.close()
  }
}

function contents(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}
