// Loaded into each process of an instance (--import). It records events with their times, by a clock that all
// processes of the machine share (CLOCK_MONOTONIC, in ms). It writes each line at once, so that a kill loses none.
//
//   a AT PATH         a request has been read
//   r AT PATH         it has been released
//   s AT PATH         it is about to be written to the upstream
//   p FROM TO CPU     the process stood still, and had the processor for CPU ms of that time
import { openSync, realpathSync, writeSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { isMainThread } from 'node:worker_threads'

const { WITNESS_DIR } = process.env
/** ms */
const TICK = 2
const PAUSE = 5

if (WITNESS_DIR !== undefined && isMainThread) {
  const file = openSync(`${WITNESS_DIR}/${process.pid}`, 'a')
  const now = () => Number(process.hrtime.bigint()) / 1e6
  const note = line => writeSync(file, `${line}\n`)
  if (process.argv[1].endsWith('shaper.js')) await watchRequests(note, now)
  const cpu = () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e3
  }
  let last = now()
  let used = cpu()
  setInterval(() => {
    const at = now()
    const usedNow = cpu()
    if (at - last > PAUSE) note(`p ${last} ${at} ${usedNow - used}`)
    last = at
    used = usedNow
  }, TICK).unref()
}

/** Not in the upstream's process. */
async function watchRequests(note, now) {
  const modules = new URL('../dist/proxy/', pathToFileURL(realpathSync(process.argv[1])))
  const { Exchange } = await import(new URL('exchange/exchange.js', modules).href)
  const { ConnectionPool } = await import(new URL('upstream/http1-pool.js', modules).href)
  const { UpstreamConnection } = await import(new URL('upstream/http1-connection.js', modules).href)
  const { start } = Exchange.prototype
  Exchange.prototype.start = function () {
    note(`a ${now()} ${this.target}`)
    return start.call(this)
  }
  for (const [type, letter] of [
    [ConnectionPool, 'r'],
    [UpstreamConnection, 's'],
  ]) {
    const { send } = type.prototype
    type.prototype.send = function (request, handler) {
      note(`${letter} ${now()} ${request.target}`)
      return send.call(this, request, handler)
    }
  }
}
