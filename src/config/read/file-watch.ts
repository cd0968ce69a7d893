import { type FSWatcher, watch } from 'node:fs'
import { basename, dirname } from 'node:path'
import { digestOfFile } from '../checks/readable-files.js'

/** How long to wait for further changes, in ms: editors and deployments write in several steps. */
const SETTLE_MS = 100
/** How often to read the files besides, in ms: a change behind a symbolic link raises no event. */
const POLL_MS = 2_000

export interface FileWatch {
  /** Watches exactly these files from now on. One that has changed since it was read counts as changed. */
  watch(files: readonly ReadFile[]): void
  close(): void
}

export interface ReadFile {
  readonly file: string
  readonly digest: string
}

export interface WatchFaults {
  unwatched(directory: string, error: Error): void
  missing(file: string): void
}

/**
 * Calls `changed` when the contents of files have changed, once for several changes at a time.
 *
 * It watches the directories of the files: a replaced file, or a link with a new target, is another inode, which a watch
 * of the file itself would miss.
 */
export function watchFiles(changed: () => void, faults: WatchFaults): FileWatch {
  const lastDigests = new Map<string, string>()
  const watchers = new Map<string, FSWatcher>()
  let settleTimer: NodeJS.Timeout | undefined
  /** At how many polls in a row a file could not be read. */
  const missed = new Map<string, number>()
  const polls = setInterval(poll, POLL_MS).unref()

  function poll(): void {
    let isChanged = false
    for (const [file, before] of lastDigests) {
      const now = digestOfFile(file)
      if (now !== before && now !== undefined) isChanged = true
      const times = now === undefined ? (missed.get(file) ?? 0) + 1 : 0
      missed.set(file, times)
      // It may be about to be replaced when it is missed first.
      if (times === 2) faults.missing(file)
    }
    if (isChanged) compareSoon()
  }

  function compareSoon(): void {
    clearTimeout(settleTimer)
    settleTimer = setTimeout(compare, SETTLE_MS)
  }

  function compare(): void {
    let isChanged = false
    for (const [file, before] of lastDigests) {
      const now = digestOfFile(file)
      // A file is missing for a moment while it is replaced.
      if (now === undefined || now === before) continue
      lastDigests.set(file, now)
      isChanged = true
    }
    if (isChanged) changed()
  }

  function watchDirectory(directory: string): void {
    try {
      const watcher = watch(directory, (_event, name) => {
        const isOurs = [...lastDigests.keys()].some(file => dirname(file) === directory && basename(file) === name)
        // Kubernetes turns a link called `..data`.
        if (name === null || isOurs || name.startsWith('..')) compareSoon()
      })
      watcher.on('error', () => undefined)
      watcher.unref()
      watchers.set(directory, watcher)
    } catch (error) {
      faults.unwatched(directory, error as Error)
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
      for (const known of lastDigests.keys()) {
        if (files.some(({ file }) => file === known)) continue
        lastDigests.delete(known)
        missed.delete(known)
      }
      for (const { file, digest } of files) if (!lastDigests.has(file)) lastDigests.set(file, digest)
      watchDirectories(new Set(files.map(({ file }) => dirname(file))))
      compareSoon()
    },
    close() {
      clearTimeout(settleTimer)
      clearInterval(polls)
      for (const watcher of watchers.values()) watcher.close()
    },
  }
}
