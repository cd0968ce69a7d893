import { type FSWatcher, readFileSync, watch } from 'node:fs'
import { basename, dirname } from 'node:path'

/** Editors and deployments write in several steps: a change counts when nothing more has come for so long, in ms. */
const SETTLING = 100

/** How often files are read besides, in ms: behind a link of their own or of a directory they change unseen. */
const LOOKING = 2_000

export interface FileWatch {
  /** Watches these files, and no others any more. What is held of a file that stays is not forgotten. */
  watch(files: readonly string[]): void
  close(): void
}

/**
 * Calls `changed` when the contents of files have changed, once for all that change together, however they were written
 * or replaced (the directories are watched: a replaced file, or a link that is turned, is another inode).
 *
 * @param unwatched called where a directory cannot be watched
 */
export function watchFiles(changed: () => void, unwatched: (directory: string, error: Error) => void): FileWatch {
  const last = new Map<string, string | undefined>()
  const watchers = new Map<string, FSWatcher>()
  let settling: NodeJS.Timeout | undefined
  const looking = setInterval(() => {
    for (const [file, before] of last) if ((contents(file) ?? before) !== before) return settle()
  }, LOOKING).unref()

  function settle(): void {
    clearTimeout(settling)
    settling = setTimeout(look, SETTLING)
  }

  function look(): void {
    let isChanged = false
    for (const [file, before] of last) {
      const now = contents(file)
      // Gone for a moment, while it is replaced.
      if (now === undefined || now === before) continue
      last.set(file, now)
      isChanged = true
    }
    if (isChanged) changed()
  }

  function watchDirectory(directory: string): void {
    try {
      const watcher = watch(directory, (_event, name) => {
        const isOurs = [...last.keys()].some(file => dirname(file) === directory && basename(file) === name)
        if (name === null || isOurs || name.startsWith('..')) settle()
      })
      watcher.on('error', () => undefined)
      watcher.unref()
      watchers.set(directory, watcher)
    } catch (error) {
      unwatched(directory, error as Error)
    }
  }

  return {
    watch(files) {
      for (const file of last.keys()) if (!files.includes(file)) last.delete(file)
      for (const file of files) if (!last.has(file)) last.set(file, contents(file))
      const directories = new Set(files.map(dirname))
      for (const [directory, watcher] of watchers) {
        if (directories.has(directory)) continue
        watcher.close()
        watchers.delete(directory)
      }
      for (const directory of directories) if (!watchers.has(directory)) watchDirectory(directory)
    },
    close() {
      clearTimeout(settling)
      clearInterval(looking)
      for (const watcher of watchers.values()) watcher.close()
    },
  }
}

function contents(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}
