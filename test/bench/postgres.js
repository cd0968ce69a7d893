// @ts-check
/** A PostgreSQL for the benchmark. It cannot run as root; then it runs as the user postgres. */
import { execFileSync } from 'node:child_process'
import { chownSync, existsSync, mkdtempSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { freePort, scratchDirectory, start } from './processes.js'

const PACKAGES = '/usr/lib/postgresql'

/** The folder of its programs; undefined: not installed. @returns {string | undefined} */
export function postgresPrograms() {
  const versions = existsSync(PACKAGES) ? readdirSync(PACKAGES).map(version => join(PACKAGES, version, 'bin')) : []
  return [...(process.env.PATH ?? '').split(':'), ...versions].findLast(directory =>
    existsSync(join(directory, 'initdb')),
  )
}

/** @param {string} programs @returns {Promise<import('./processes.js').Program & { url: string }>} */
export async function startPostgres(programs) {
  const id = (/** @type {string} */ flag) => Number(execFileSync('id', [flag, 'postgres'], { encoding: 'utf8' }))
  const who = process.getuid?.() === 0 ? { uid: id('-u'), gid: id('-g') } : undefined
  const directory = mkdtempSync(join(scratchDirectory(), 'postgres-'))
  if (who !== undefined) {
    for (const path of [scratchDirectory(), directory]) chownSync(path, who.uid, who.gid)
  }
  const data = join(directory, 'data')
  const rights = { ...who, cwd: directory }
  execFileSync(join(programs, 'initdb'), ['-D', data, '-U', 'bench', '-A', 'trust', '--no-sync'], {
    ...rights,
    stdio: 'ignore',
  })
  const port = await freePort()
  const program = start(join(programs, 'postgres'), ['-D', data, '-p', `${port}`, '-h', '127.0.0.1', '-k', directory], {
    name: 'postgres',
    ...rights,
  })
  program.port = port
  await program.listening()
  return Object.assign(program, { url: `postgres://bench@127.0.0.1:${port}/postgres` })
}
