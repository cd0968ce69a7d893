import { type FSWatcher, readFileSync, watch } from 'node:fs'
import { basename, dirname } from 'node:path'

/** How long to wait for further changes, in ms: editors and deployments write in several steps. */
const SETTLE_MS = 100

/** How often to read the files besides, in ms: a change behind a symbolic link raises no event. */
const POLL_MS = 2_000

export interface FileWatch {
  /** Watches exactly these files from now on. */
  watch(files: readonly string[]): void
  close(): void
}

/**
 * Calls `changed` when the contents of files have changed, once for several changes at a time.
 *
 * It watches the directories of the files: a replaced file, or a link with a new target, is another inode, which a watch
 * of the file itself would miss.
 *
 * @param unwatched called for a directory that cannot be watched
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
      // A file is missing for a moment while it is replaced.
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
        // Kubernetes turns a link called `..data`.
        if (name === null || isOurs || name.startsWith('..')) compareSoon()
      })
      watcher.on('error', () => undefined)
      watcher.unref()
      watchers.set(directory, watcher)
    } catch (error) {
      unwatched(directory, error as Error)
    }
  }

  function watchDirectories(directories: ReadonlySet<string>): void {
    for (const [directory, watcher] of watchers) {
      if (directories.has(directory)) continue
      watcher.close()
      watchers.delete(directory)
    }
    for (const directory of directories) if (!watchers.has(directory)) watchDirectory(directory)
  }

  return {
    watch(files) {
      for (const file of lastContents.keys()) if (!files.includes(file)) lastContents.delete(file)
      for (const file of files) if (!lastContents.has(file)) lastContents.set(file, contents(file))
      watchDirectories(new Set(files.map(dirname)))
    },
    close() {
      clearTimeout(settleTimer)
      clearInterval(poll)
      for (const watcher of watchers.values()) watcher.close()
    },
  }
}

/** Undefined for a file that cannot be read. */
function contents(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}
