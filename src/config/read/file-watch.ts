import { type FSWatcher, readFileSync, watch } from 'node:fs'
import { basename, dirname } from 'node:path'

/** Editors and deployments write in several steps: a change counts when nothing more has come for so long, in ms. */
const SETTLE_MS = 100

/** How often files are read besides, in ms: behind a link of their own or of a directory they change unseen. */
const POLL_MS = 2_000

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
  const lastContents = new Map<string, string | undefined>()
  const watchers = new Map<string, FSWatcher>()
  let settleTimer: NodeJS.Timeout | undefined
  const poll = setInterval(() => {
    for (const [file, before] of lastContents) if ((contents(file) ?? before) !== before) return compareSoon()
  }, POLL_MS).unref()

  function compareSoon(): void {
    clearTimeout(settleTimer)
    settleTimer = setTimeout(compare, SETTLE_MS)
  }

  function compare(): void {
    let isChanged = false
    for (const [file, before] of lastContents) {
      const now = contents(file)
      // Gone for a moment, while it is replaced.
      if (now === undefined || now === before) continue
      lastContents.set(file, now)
      isChanged = true
    }
    if (isChanged) changed()
  }

  function watchDirectory(directory: string): void {
    try {
      const watcher = watch(directory, (_event, name) => {
        const isOurs = [...lastContents.keys()].some(file => dirname(file) === directory && basename(file) === name)
        if (name === null || isOurs || name.startsWith('..')) compareSoon()
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
      for (const file of lastContents.keys()) if (!files.includes(file)) lastContents.delete(file)
      for (const file of files) if (!lastContents.has(file)) lastContents.set(file, contents(file))
      const directories = new Set(files.map(dirname))
      for (const [directory, watcher] of watchers) {
        if (directories.has(directory)) continue
        watcher.close()
        watchers.delete(directory)
      }
      for (const directory of directories) if (!watchers.has(directory)) watchDirectory(directory)
    },
    close() {
      clearTimeout(settleTimer)
      clearInterval(poll)
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
