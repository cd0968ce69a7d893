/** The sockets that systemd has opened for this program and gives to it: sd_listen_fds(3). */
import { fstatSync, readFileSync } from 'node:fs'
import { pathOfListen } from '../../config/checks/readable-files.js'
import { ConfigError, type Problem } from '../../config/load.js'
import { quote } from '../../config/messages.js'
import { formatListen, NO_PEER_ADDRESS } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'

type AdminListen = NonNullable<Settings['admin']>['listen']

export interface GivenSocket {
  readonly fd: number
  /** That of its unit, or FileDescriptorName= in there. */
  readonly name: string
}

export interface Given {
  readonly sockets: readonly GivenSocket[]
  /** Why there is none. */
  readonly reason?: string
}

const FIRST_FD = 3

/** Reads the variables that say what is given, and removes them: they are for this process alone. */
export function takeGivenSockets(env: NodeJS.ProcessEnv, pid: number): Given {
  const { LISTEN_FDS: count, LISTEN_PID: owner, LISTEN_FDNAMES: names } = env
  for (const name of ['LISTEN_FDS', 'LISTEN_PID', 'LISTEN_FDNAMES'] as const) delete env[name]
  if (count === undefined) return { sockets: [], reason: 'LISTEN_FDS is not set' }
  if (owner !== String(pid)) {
    const reason = `LISTEN_PID is ${quote(owner)} and this process ${pid}: let systemd start shaper itself, not npm or a shell`
    return { sockets: [], reason }
  }
  if (!/^\d{1,4}$/.test(count)) return { sockets: [], reason: `LISTEN_FDS is ${quote(count)}, and no number` }
  const each = names?.split(':') ?? []
  // systemd has the same word for a socket without a name.
  return {
    sockets: Array.from({ length: Number(count) }, (_, at) => ({ fd: FIRST_FD + at, name: each[at] || 'unknown' })),
  }
}

/**
 * Puts the sockets in the place of `"systemd"` and `"systemd:NAME"`. A listener may stand for several.
 *
 * @returns the settings to start with, and the sockets that no listener uses
 * @throws ConfigError
 */
export function withGivenSockets(
  settings: Settings,
  { sockets, reason }: Given,
): { settings: Settings; unused: GivenSocket[] } {
  const { listen, admin } = settings
  const named = new Set(
    [...listen, ...(admin ? [admin.listen] : [])].map(each => ('systemd' in each ? each.systemd : '')),
  )
  const used = new Set<GivenSocket>()
  const problems: Problem[] = []
  const find = <T extends AdminListen>(place: T, path: string): T[] => {
    if (!('systemd' in place)) return [place]
    const found = sockets.filter(({ name }) => (place.systemd === '' ? !named.has(name) : name === place.systemd))
    if (found.length === 0) problems.push({ path, message: missing(place, sockets, reason) })
    return found.flatMap(socket => {
      used.add(socket)
      const { isUnix, fault } = kindOf(socket.fd)
      if (fault !== undefined) {
        const which = `the socket ${quote(socket.name)} that systemd gives (file descriptor ${socket.fd})`
        problems.push({ path, message: `${which} ${fault}; use a .socket unit with ListenStream= and Accept=no` })
      } else if (isUnix && 'proxyProtocol' in place)
        problems.push({ path: `${path}.proxyProtocol`, message: NO_PEER_ADDRESS })
      return [{ ...place, systemd: socket.name, fd: socket.fd }]
    })
  }
  const ofProxy = listen.flatMap((each, index) => find(each, pathOfListen(listen, index)))
  const [ofAdmin, second] = admin === undefined ? [] : find(admin.listen, 'admin.listen')
  if (second !== undefined) {
    const message = `systemd gives several sockets for ${quote(formatListen(admin!.listen))}; name one with FileDescriptorName=`
    problems.push({ path: 'admin.listen', message })
  }
  if (problems.length > 0) throw new ConfigError(problems)
  return {
    settings: { ...settings, listen: ofProxy, ...(admin && { admin: { ...admin, listen: ofAdmin! } }) },
    unused: sockets.filter(socket => !used.has(socket)),
  }
}

function missing(place: AdminListen, sockets: readonly GivenSocket[], reason: string | undefined): string {
  const wanted = quote(formatListen(place))
  if (sockets.length === 0)
    return `systemd gives no socket for ${wanted}${reason === undefined ? '' : ` (${reason})`}; start shaper by a .socket unit, or name an address`
  const given = [...new Set(sockets.map(({ name }) => quote(name)))].join(' and ')
  return `systemd gives no socket for ${wanted}, but ${given}; name one of them, or set FileDescriptorName= in its unit`
}

const NO_STREAM = 'is no stream socket'
const LISTENS_TCP = '0A'
const LISTENS_UNIX = 0x1_0000
const STREAM = '0001'

/** Tables of sockets in Linux: the column with the number of a socket, and what is wrong with one by its other columns. */
const TABLES = [
  ...['tcp', 'tcp6'].map(name => ({ name, inode: 9, faultOf: ofTcp })),
  { name: 'unix', inode: 6, faultOf: ofUnix },
  ...['udp', 'udp6'].map(name => ({ name, inode: 9, faultOf: () => NO_STREAM })),
]

function ofTcp([, , , state]: readonly string[]): string | undefined {
  return state === LISTENS_TCP ? undefined : 'does not listen'
}

function ofUnix([, , , flags = '', type]: readonly string[]): string | undefined {
  if (type !== STREAM) return NO_STREAM
  return (Number.parseInt(flags, 16) & LISTENS_UNIX) === 0 ? 'does not listen' : undefined
}

/** A socket of another network namespace (PrivateNetwork=) is in no table. Whether it listens is then seen when it is listened on. */
function kindOf(fd: number): { readonly isUnix: boolean; readonly fault: string | undefined } {
  const inode = inodeOf(fd)
  if (inode === undefined) return { isUnix: false, fault: 'is not open, or no socket' }
  for (const { name, inode: column, faultOf } of TABLES) {
    const line = linesOf(`/proc/net/${name}`)
      .filter(each => each.includes(inode))
      .map(each => each.trim().split(/\s+/))
      .find(columns => columns[column] === inode)
    if (line !== undefined) return { isUnix: name === 'unix', fault: faultOf(line) }
  }
  return { isUnix: false, fault: undefined }
}

function inodeOf(fd: number): string | undefined {
  try {
    const stats = fstatSync(fd)
    return stats.isSocket() ? String(stats.ino) : undefined
  } catch {
    return undefined
  }
}

function linesOf(table: string): string[] {
  try {
    return readFileSync(table, 'latin1').split('\n')
  } catch {
    return []
  }
}
